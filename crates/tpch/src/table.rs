//! The tables' schemas, keys, indexes and DDL.

use arrow::datatypes::SchemaRef;
use tpchgen_arrow::{
    CustomerArrow, LineItemArrow, NationArrow, OrderArrow, PartArrow, PartSuppArrow, RegionArrow, SupplierArrow,
};

/// A table of TPC-H.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Table {
    /// 5 regions at every scale.
    Region,
    /// 25 nations at every scale.
    Nation,
    /// 10,000 suppliers at scale 1.
    Supplier,
    /// 150,000 customers at scale 1.
    Customer,
    /// 200,000 parts at scale 1.
    Part,
    /// 800,000 offers of a part by a supplier at scale 1.
    PartSupp,
    /// 1,500,000 orders at scale 1.
    Orders,
    /// About 6,000,000 lines of orders at scale 1.
    LineItem,
}

impl Table {
    /// All tables, smallest first.
    pub const ALL: [Table; 8] = [
        Table::Region,
        Table::Nation,
        Table::Supplier,
        Table::Customer,
        Table::Part,
        Table::PartSupp,
        Table::Orders,
        Table::LineItem,
    ];

    /// The name in lower case, as SQL and file names use it.
    pub fn name(self) -> &'static str {
        match self {
            Table::Region => "region",
            Table::Nation => "nation",
            Table::Supplier => "supplier",
            Table::Customer => "customer",
            Table::Part => "part",
            Table::PartSupp => "partsupp",
            Table::Orders => "orders",
            Table::LineItem => "lineitem",
        }
    }

    /// The table with this name (in lower case).
    pub fn find(name: &str) -> Option<Table> {
        Table::ALL.into_iter().find(|table| table.name() == name)
    }

    /// The Arrow schema of the table's batches.
    pub fn schema(self) -> SchemaRef {
        match self {
            Table::Region => RegionArrow::schema_ref(),
            Table::Nation => NationArrow::schema_ref(),
            Table::Supplier => SupplierArrow::schema_ref(),
            Table::Customer => CustomerArrow::schema_ref(),
            Table::Part => PartArrow::schema_ref(),
            Table::PartSupp => PartSuppArrow::schema_ref(),
            Table::Orders => OrderArrow::schema_ref(),
            Table::LineItem => LineItemArrow::schema_ref(),
        }
    }

    /// Columns of the primary key, in key order.
    pub fn primary_key(self) -> &'static [&'static str] {
        match self {
            Table::Region => &["r_regionkey"],
            Table::Nation => &["n_nationkey"],
            Table::Supplier => &["s_suppkey"],
            Table::Customer => &["c_custkey"],
            Table::Part => &["p_partkey"],
            Table::PartSupp => &["ps_partkey", "ps_suppkey"],
            Table::Orders => &["o_orderkey"],
            Table::LineItem => &["l_orderkey", "l_linenumber"],
        }
    }

    /// Secondary indexes on foreign keys and dates. An index on a foreign key includes the columns that the TPC-H queries read
    /// along with it.
    pub fn indexes(self) -> &'static [Index] {
        const fn index(name: &'static str, columns: &'static str, include: &'static str) -> Index {
            Index { name, columns, include }
        }
        match self {
            Table::Region | Table::Part => &[],
            Table::Nation => const { &[index("nation_region", "n_regionkey", "")] },
            Table::Supplier => const { &[index("supplier_nation", "s_nationkey", "")] },
            Table::Customer => {
                const { &[index("customer_nation", "c_nationkey", ""), index("customer_acctbal", "c_acctbal", "")] }
            }
            Table::PartSupp => const { &[index("partsupp_supplier", "ps_suppkey", "ps_availqty, ps_supplycost")] },
            Table::Orders => {
                const {
                    &[
                        index("orders_customer", "o_custkey", "o_orderdate, o_shippriority"),
                        index("orders_date", "o_orderdate", "o_custkey"),
                    ]
                }
            }
            Table::LineItem => {
                const {
                    &[
                        index(
                            "lineitem_part",
                            "l_partkey, l_suppkey",
                            "l_quantity, l_extendedprice, l_discount, l_shipdate",
                        ),
                        index("lineitem_supplier", "l_suppkey", ""),
                        index("lineitem_shipdate", "l_shipdate", "l_extendedprice, l_discount, l_quantity"),
                    ]
                }
            }
        }
    }

    /// Number of rows at a scale: exact, except for lineitem, whose size is random (within 1 % from scale 0.1).
    pub fn rows(self, scale: f64) -> u64 {
        let per_unit = match self {
            Table::Region => return 5,
            Table::Nation => return 25,
            Table::Supplier => 10_000.0,
            Table::Customer => 150_000.0,
            Table::Part => 200_000.0,
            Table::PartSupp => 800_000.0,
            Table::Orders => 1_500_000.0,
            Table::LineItem => 6_001_215.0,
        };
        (per_unit * scale) as u64
    }

    /// The CREATE TABLE statement with the primary key and all columns, or only the given ones.
    pub fn create(self, columns: Option<&[&str]>) -> String {
        let schema = self.schema();
        let wanted = |name: &str| columns.is_none_or(|columns| columns.contains(&name));
        let mut parts: Vec<String> = Vec::new();
        for field in schema.fields().iter().filter(|field| wanted(field.name())) {
            let not_null = if field.is_nullable() { "" } else { " NOT NULL" };
            parts.push(format!("{} {}{not_null}", field.name(), sql_type(field.data_type())));
        }
        parts.push(format!("PRIMARY KEY ({})", self.primary_key().join(", ")));
        format!("CREATE TABLE {} (\n    {}\n)", self.name(), parts.join(",\n    "))
    }
}

/// A secondary index of a TPC-H table.
#[derive(Debug, Clone, Copy)]
pub struct Index {
    /// Name, unique among all tables.
    pub name: &'static str,
    /// Key columns, separated by commas.
    pub columns: &'static str,
    /// Included columns, separated by commas; may be empty.
    pub include: &'static str,
}

impl Index {
    /// The CREATE INDEX statement.
    pub fn create(&self, table: Table) -> String {
        let include = if self.include.is_empty() { String::new() } else { format!(" INCLUDE ({})", self.include) };
        format!("CREATE INDEX {} ON {} ({}){include}", self.name, table.name(), self.columns)
    }
}

fn sql_type(ty: &arrow::datatypes::DataType) -> String {
    use arrow::datatypes::DataType;
    match ty {
        DataType::Int32 => "INTEGER".into(),
        DataType::Int64 => "BIGINT".into(),
        DataType::Date32 => "DATE".into(),
        DataType::Decimal128(precision, scale) => format!("DECIMAL({precision},{scale})"),
        _ => "TEXT".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definitions() {
        assert_eq!(
            Table::Region.create(None),
            "CREATE TABLE region (\n    r_regionkey BIGINT NOT NULL,\n    r_name TEXT NOT NULL,\n    r_comment TEXT NOT \
             NULL,\n    PRIMARY KEY (r_regionkey)\n)"
        );
        assert!(Table::LineItem.create(Some(&["l_orderkey", "l_linenumber"])).lines().count() == 5);
        let orders = Table::Orders.indexes()[0].create(Table::Orders);
        assert_eq!(orders, "CREATE INDEX orders_customer ON orders (o_custkey) INCLUDE (o_orderdate, o_shippriority)");
        for table in Table::ALL {
            assert_eq!(Table::find(table.name()), Some(table));
            let schema = table.schema();
            for column in
                table.indexes().iter().flat_map(|index| index.columns.split(", ").chain(index.include.split(", ")))
            {
                assert!(column.is_empty() || schema.field_with_name(column).is_ok(), "{column}");
            }
        }
    }
}
