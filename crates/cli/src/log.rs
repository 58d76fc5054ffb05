//! The log on standard error: lines of text, or JSON objects.

use std::fmt;
use std::io::stderr;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use crate::arguments::{Arguments, Command, LogFormat};

/// Starts the log. The environment variable `KEYAKI_LOG` selects its events.
pub fn start(arguments: Option<&Arguments>) {
    let serve = arguments.and_then(|arguments| match &arguments.command {
        Some(Command::Serve(arguments)) => Some(arguments),
        _ => None,
    });
    // The server has an option for slow statements.
    let default = if serve.is_some() { "warn,keyaki_server::statements=info,keyaki_server::tls=info" } else { "error" };
    let filter = EnvFilter::try_from_env("KEYAKI_LOG").unwrap_or_else(|_| EnvFilter::new(default));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(stderr);
    match serve.map(|serve| serve.log_format) {
        Some(LogFormat::Json) => log.event_format(Json).init(),
        _ => log.init(),
    }
}

/// Formats events as JSON objects, one in a line.
struct Json;

impl<S, N> FormatEvent<S, N> for Json
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut fields = Fields(Map::new());
        fields.put("unix_time", time.as_secs_f64().into());
        fields.put("level", event.metadata().level().as_str().into());
        fields.put("target", event.metadata().target().into());
        event.record(&mut fields);
        writeln!(writer, "{}", Value::Object(fields.0))
    }
}

/// The fields of an event.
struct Fields(Map<String, Value>);

impl Fields {
    fn put(&mut self, name: &str, value: Value) {
        self.0.insert(name.into(), value);
    }
}

impl Visit for Fields {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field.name(), value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field.name(), value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field.name(), value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field.name(), value.into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field.name(), value.into());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put(field.name(), format!("{value:?}").into());
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Output(Arc<Mutex<Vec<u8>>>);

    impl Write for Output {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn events_are_json_objects() {
        let output = Output::default();
        let writer = output.clone();
        let log = tracing_subscriber::fmt().event_format(Json).with_writer(move || writer.clone()).finish();
        tracing::subscriber::with_default(log, || {
            tracing::info!(target: "a", duration_ms = 1.5, process = 7, text = "line\n\"two\"", "slow {}", "statement");
        });
        let line = String::from_utf8(output.0.lock().unwrap().clone()).unwrap();
        assert!(line.ends_with('\n') && line.matches('\n').count() == 1);
        let event: Value = serde_json::from_str(&line).unwrap();
        assert_eq!((&event["level"], &event["target"]), (&"INFO".into(), &"a".into()));
        assert_eq!((&event["duration_ms"], &event["process"]), (&1.5.into(), &7.into()));
        assert_eq!((&event["text"], &event["message"]), (&"line\n\"two\"".into(), &"slow statement".into()));
        assert!(event["unix_time"].as_f64().unwrap() > 1e9);
    }
}
