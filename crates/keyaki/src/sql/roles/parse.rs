//! The statements, from their tokens.

use datafusion::sql::sqlparser::parser::Parser;
use datafusion::sql::sqlparser::tokenizer::Token;

use super::password::Password;
use super::words::{accept, expect, identifier, list, next, peek, role_name, unexpected};
use super::{Members, Options, RoleName, RoleStatement};
use crate::base::syntax;
use crate::sql::names::{plain_ident, quoted};
use crate::sql::split::Statement;
use crate::sql::{expect_end, words_of_role};
use crate::{Error, Result};

/// Parses CREATE, ALTER and DROP of ROLE, USER and GROUP, SET and RESET of ROLE and SESSION AUTHORIZATION, GRANT and REVOKE,
/// ALTER DEFAULT PRIVILEGES, REASSIGN OWNED and DROP OWNED; `None` for other statements.
///
/// # Errors
/// `Syntax`, `Unsupported`.
pub(in crate::sql) fn parse(statement: &Statement<'_>) -> Result<Option<RoleStatement>> {
    let words = statement.words();
    if !words_of_role(&words) {
        return Ok(None);
    }
    let mut parser = statement.parser();
    let parsed = parse_from(&mut parser)?;
    expect_end(&mut parser)?;
    Ok(Some(parsed))
}

fn parse_from(parser: &mut Parser<'_>) -> Result<RoleStatement> {
    if matches!(peek(parser).as_deref(), Some("GRANT" | "REVOKE")) {
        return super::grants::parse(parser);
    }
    let verb = next(parser).unwrap_or_default();
    if verb == "SET" || verb == "RESET" {
        return parse_switch(parser, verb == "SET");
    }
    let kind = next(parser).unwrap_or_default();
    if kind == "OWNED" {
        return parse_owned(parser, verb == "DROP");
    }
    if kind == "DEFAULT" {
        return super::defaults::parse(parser);
    }
    match verb.as_str() {
        "CREATE" => {
            let name = identifier(parser)?;
            let mut options = Options { login: (kind == "USER").then_some(true), ..Options::default() };
            parse_options(parser, &mut options, true)?;
            Ok(RoleStatement::Create(name, options))
        }
        "DROP" => {
            let if_exists = accept(parser, &["IF", "EXISTS"]);
            Ok(RoleStatement::Drop { names: list(parser, role_name)?, if_exists })
        }
        _ => parse_alter(parser, &kind),
    }
}

/// The rest of DROP OWNED and REASSIGN OWNED.
fn parse_owned(parser: &mut Parser<'_>, drops: bool) -> Result<RoleStatement> {
    expect(parser, &["BY"])?;
    let owners = list(parser, role_name)?;
    if !drops {
        expect(parser, &["TO"])?;
        return Ok(RoleStatement::Reassign(owners, role_name(parser)?));
    }
    let cascades = accept(parser, &["CASCADE"]);
    let _ = !cascades && accept(parser, &["RESTRICT"]);
    Ok(RoleStatement::DropOwned { owners, cascades })
}

/// The rest of SET and RESET.
fn parse_switch(parser: &mut Parser<'_>, sets: bool) -> Result<RoleStatement> {
    if accept(parser, &["ROLE"]) {
        let _ = sets && (parser.consume_token(&Token::Eq) || accept(parser, &["TO"]));
        let is_none = !sets || accept(parser, &["NONE"]);
        return Ok(RoleStatement::SetRole(if is_none { None } else { Some(name_or_text(parser)?) }));
    }
    expect(parser, &["SESSION"])?;
    if sets && accept(parser, &["ROLE"]) {
        let is_none = accept(parser, &["NONE"]);
        return Ok(RoleStatement::SetRole(if is_none { None } else { Some(name_or_text(parser)?) }));
    }
    let _ = accept(parser, &["SESSION"]);
    expect(parser, &["AUTHORIZATION"])?;
    let is_default = !sets || accept(parser, &["DEFAULT"]);
    Ok(RoleStatement::SetSession(if is_default { None } else { Some(name_or_text(parser)?) }))
}

/// A name, also as a text in single quotes.
fn name_or_text(parser: &mut Parser<'_>) -> Result<datafusion::sql::sqlparser::ast::Ident> {
    match parser.peek_token().token {
        Token::SingleQuotedString(text) => {
            parser.next_token();
            Ok(datafusion::sql::sqlparser::ast::Ident::with_quote('"', text))
        }
        _ => identifier(parser),
    }
}

fn parse_alter(parser: &mut Parser<'_>, kind: &str) -> Result<RoleStatement> {
    let role = role_name(parser)?;
    if accept(parser, &["RENAME", "TO"]) {
        return Ok(RoleStatement::Rename(role, identifier(parser)?));
    }
    if kind == "GROUP" {
        let is_grant = accept(parser, &["ADD", "USER"]);
        if !is_grant {
            expect(parser, &["DROP", "USER"])?;
        }
        let RoleName::Named(group) = role else { return Err(Error::syntax("ALTER GROUP needs the name of a role")) };
        let members = list(parser, role_name)?;
        return Ok(RoleStatement::Members(Members { roles: vec![group], members, is_grant, admin: None }));
    }
    if accept(parser, &["IN", "DATABASE"]) {
        return Err(Error::Unsupported("IN DATABASE in ALTER ROLE (a server has one database)".into()));
    }
    if accept(parser, &["SET"]) {
        return parse_setting(parser, role);
    }
    if accept(parser, &["RESET"]) {
        let name = setting_name(parser)?;
        return Ok(RoleStatement::Reset(role, (name != "all").then_some(name)));
    }
    let mut options = Options::default();
    parse_options(parser, &mut options, false)?;
    Ok(RoleStatement::Alter(role, options))
}

/// The name of a setting, in lower case.
fn setting_name(parser: &mut Parser<'_>) -> Result<String> {
    if accept(parser, &["TIME", "ZONE"]) {
        return Ok("timezone".into());
    }
    let name = parser.parse_object_name(false).map_err(syntax)?;
    let parts = name.0.iter().filter_map(|part| part.as_ident().map(plain_ident));
    Ok(parts.collect::<Vec<_>>().join("."))
}

/// `name { TO | = } value`.
fn parse_setting(parser: &mut Parser<'_>, role: RoleName) -> Result<RoleStatement> {
    let name = setting_name(parser)?;
    if name != "timezone" && !parser.consume_token(&Token::Eq) {
        expect(parser, &["TO"])?;
    } else {
        let _ = parser.consume_token(&Token::Eq) || accept(parser, &["TO"]);
    }
    let mut value = String::new();
    while parser.peek_token().token != Token::EOF {
        let token = parser.next_token().token;
        let is_sign = matches!(token, Token::Minus | Token::Plus);
        value.push_str(&match token {
            // The parser shows texts and names without the quotes in them.
            Token::SingleQuotedString(text) | Token::EscapedStringLiteral(text) => {
                format!("'{}'", text.replace('\'', "''"))
            }
            Token::Word(word) if word.quote_style.is_some() => quoted(&word.value),
            token => token.to_string(),
        });
        value.push_str(if is_sign { "" } else { " " });
    }
    match value.trim_end() {
        "" => Err(unexpected(parser, "a value")),
        value if value.eq_ignore_ascii_case("default") => Ok(RoleStatement::Reset(role, Some(name))),
        value => Ok(RoleStatement::Set(role, name, value.into())),
    }
}

/// The options of CREATE ROLE and ALTER ROLE.
fn parse_options(parser: &mut Parser<'_>, options: &mut Options, creates: bool) -> Result<()> {
    let _ = accept(parser, &["WITH"]);
    let mut given: Vec<String> = Vec::new();
    while parser.peek_token().token != Token::EOF {
        let word = next(parser).ok_or_else(|| unexpected(parser, "an option of the role"))?;
        let name =
            word.strip_prefix("NO").filter(|name| ["SUPERUSER", "LOGIN"].contains(name) || name.starts_with("CREATE"));
        let once = name.unwrap_or(&word).to_string();
        if given.contains(&once) {
            return Err(Error::syntax("conflicting or redundant options"));
        }
        match word.as_str() {
            "SUPERUSER" | "NOSUPERUSER" => options.superuser = Some(name.is_none()),
            "LOGIN" | "NOLOGIN" => options.login = Some(name.is_none()),
            "CREATEROLE" | "NOCREATEROLE" => options.create_role = Some(name.is_none()),
            "CREATEDB" | "NOCREATEDB" => options.create_schema = Some(name.is_none()),
            "INHERIT" | "NOREPLICATION" | "NOBYPASSRLS" => {}
            "NOINHERIT" => {
                return Err(Error::Unsupported("NOINHERIT (roles inherit the privileges of their roles)".into()));
            }
            "REPLICATION" | "BYPASSRLS" => return Err(Error::Unsupported(format!("{word} in the options of a role"))),
            "SYSID" => drop(parser.parse_literal_uint().map_err(syntax)?),
            "ENCRYPTED" | "PASSWORD" => {
                if word == "ENCRYPTED" {
                    expect(parser, &["PASSWORD"])?;
                }
                options.password = Some(match accept(parser, &["NULL"]) {
                    true => None,
                    false => Password::new(parser.parse_literal_string().map_err(syntax)?),
                });
            }
            "UNENCRYPTED" => return Err(Error::Unsupported("UNENCRYPTED PASSWORD (use PASSWORD)".into())),
            "CONNECTION" => {
                expect(parser, &["LIMIT"])?;
                options.connection_limit = Some(connection_limit(parser)?);
            }
            "VALID" => {
                expect(parser, &["UNTIL"])?;
                options.valid_until = Some(parser.parse_literal_string().map_err(syntax)?);
            }
            "IN" if creates && (accept(parser, &["ROLE"]) || accept(parser, &["GROUP"])) => {
                options.member_of.extend(list(parser, identifier)?);
            }
            "ROLE" | "USER" if creates => options.members.extend(list(parser, role_name)?),
            "ADMIN" if creates => options.admins.extend(list(parser, role_name)?),
            _ => return Err(Error::syntax(format!("unrecognized role option \"{}\"", word.to_ascii_lowercase()))),
        }
        given.push(once);
    }
    Ok(())
}

/// A number of connections; `None` for -1.
fn connection_limit(parser: &mut Parser<'_>) -> Result<Option<u32>> {
    let is_negative = parser.consume_token(&Token::Minus);
    let limit = parser.parse_literal_uint().map_err(syntax)?;
    match (is_negative, u32::try_from(limit)) {
        (true, Ok(1)) => Ok(None),
        // As in PostgreSQL, whose catalog has integers of 32 bits.
        (false, Ok(limit)) if i32::try_from(limit).is_ok() => Ok(Some(limit)),
        _ => Err(Error::InvalidParameter {
            name: "connection limit".into(),
            value: format!("{}{limit}", if is_negative { "-" } else { "" }),
            expected: "-1 for no limit, or a number of connections".into(),
        }),
    }
}
