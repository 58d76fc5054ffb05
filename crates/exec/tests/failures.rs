//! Queries that fail or are cancelled: errors keep their type, other queries are not affected, and no fiber remains.

mod common;

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use arrow_array::{ArrayRef, BooleanArray, Int64Array, RecordBatch, StringViewArray};
use common::{Database, FailingFilter, FilterFailed, Row, Table, collect, options};
use futures::StreamExt;
use keyaki_exec::{
    Direction, Driver, DriverScan, Error, ExecutionMode, Executor, ExecutorOptions, Filter, Join, KeyPart, KeyRange,
    Pipeline, PlanError, Result, Rows, Scan, Step,
};

const MODES: [ExecutionMode; 2] = [ExecutionMode::InOrder, ExecutionMode::OutOfOrder];

struct Setup {
    database: Database,
    executor: Executor,
}

impl Setup {
    fn new() -> Setup {
        let table = Table { rows: (0..3_000).map(|row| (Some(row), Some(row % 700))).collect() };
        let database = Database::new(&[table], options(), |id| id % 5 == 0);
        let options = ExecutorOptions { workers: 2, tasks_in_flight: 8, ..ExecutorOptions::default() };
        let executor = Executor::new(database.store.clone(), options).unwrap();
        Setup { database, executor }
    }

    fn scan(&self, mode: ExecutionMode, filter: Option<Arc<dyn Filter>>) -> Rows {
        let scan = Scan {
            view: self.database.views[0].clone(),
            ranges: vec![KeyRange::all()],
            direction: Direction::Ascending,
            columns: vec![1],
            filters: filter.into_iter().map(|filter| (vec![0], filter)).collect(),
            limit: None,
            batch_rows: 100,
            kept: Vec::new(),
        };
        self.executor.scan(scan, mode)
    }

    /// Joins each row with the row whose k equals its v.
    fn pipeline(&self, mode: ExecutionMode, key: KeyPart, filter: Option<Arc<dyn Filter>>) -> Pipeline {
        let view = self.database.views[0].clone();
        let (ranges, columns) = (vec![KeyRange::all()], vec![1, 2, 3]);
        let driver = Driver::Scan(DriverScan { view: view.clone(), ranges, columns, filter: None });
        let step = Step { view, key: vec![key], columns: vec![1], join: Join::LeftOuter, filter, keep: Some(vec![0]) };
        Pipeline { driver, steps: vec![step], mode, batch_rows: 100, memory_bytes: 1 << 20, whole_pages: false }
    }

    fn join(&self, mode: ExecutionMode, filter: Option<Arc<dyn Filter>>) -> Rows {
        self.executor.pipeline(self.pipeline(mode, KeyPart::Column(1), filter))
    }

    fn plan_error(&self, change: impl FnOnce(&mut Pipeline)) -> PlanError {
        let mut pipeline = self.pipeline(ExecutionMode::OutOfOrder, KeyPart::Column(1), None);
        change(&mut pipeline);
        match collect(self.executor.pipeline(pipeline)) {
            Err(Error::Plan(error)) => error,
            other => panic!("{other:?}"),
        }
    }

    /// The executor still works, and no fiber is left.
    fn check_intact(&self) {
        for mode in MODES {
            let rows: Result<Vec<Row>> = collect(self.join(mode, None));
            assert_eq!(rows.unwrap().len(), 3_000);
        }
        common::eventually("all fibers end", || self.executor.fiber_count() == 0);
    }
}

fn failing(panics: bool) -> Option<Arc<dyn Filter>> {
    Some(Arc::new(FailingFilter { calls_left: AtomicUsize::new(3), panics }))
}

#[test]
fn filter_errors_come_out_with_their_type() {
    let setup = Setup::new();
    for mode in MODES {
        for rows in [setup.scan(mode, failing(false)), setup.join(mode, failing(false))] {
            let Err(Error::Filter(error)) = collect(rows) else { panic!("no error of the filter") };
            assert_eq!(error.downcast_ref(), Some(&FilterFailed));
        }
    }
    setup.check_intact();
}

#[test]
fn a_panic_of_a_filter_ends_its_query_only() {
    let setup = Setup::new();
    for mode in MODES {
        for rows in [setup.scan(mode, failing(true)), setup.join(mode, failing(true))] {
            let Err(Error::Panicked(message)) = collect(rows) else { panic!("no panic of the filter") };
            assert_eq!(message, "panic of the filter");
        }
    }
    setup.check_intact();
}

#[test]
fn masks_of_the_wrong_length_are_errors() {
    #[derive(Debug)]
    struct TooShort;
    impl Filter for TooShort {
        fn evaluate(&self, rows: &RecordBatch) -> Result<BooleanArray> {
            Ok(BooleanArray::from(vec![true; rows.num_rows() - 1]))
        }
    }
    let setup = Setup::new();
    for mode in MODES {
        for rows in [setup.scan(mode, Some(Arc::new(TooShort))), setup.join(mode, Some(Arc::new(TooShort)))] {
            let Err(Error::FilterLength { rows, values }) = collect(rows) else { panic!("the mask was accepted") };
            assert_eq!(values + 1, rows);
        }
    }
    setup.check_intact();
}

#[test]
fn dropped_streams_cancel_their_queries() {
    let setup = Setup::new();
    for mode in MODES {
        for taken in 0..3 {
            for mut rows in [setup.scan(mode, None), setup.join(mode, None)] {
                setup.database.store.drop_caches();
                for _ in 0..taken {
                    futures::executor::block_on(rows.next()).unwrap().unwrap();
                }
            }
        }
    }
    setup.check_intact();
}

#[test]
fn plans_that_do_not_fit_name_the_problem() {
    let setup = Setup::new();
    let key = |part: KeyPart| move |pipeline: &mut Pipeline| pipeline.steps[0].key = vec![part];
    let numbers = |count| KeyPart::Constant(Arc::new(Int64Array::from(vec![1; count])) as ArrayRef);
    let text = KeyPart::Constant(Arc::new(StringViewArray::from(vec!["a"])) as ArrayRef);
    assert_eq!(
        setup.plan_error(|pipeline| match &mut pipeline.driver {
            Driver::Scan(driver) => driver.columns = vec![9],
            Driver::Pushed(_) => panic!("the driver is a scan"),
        }),
        PlanError::ColumnOutOfRange { step: None, column: 9, columns: 4 }
    );
    let pushed = |pipeline: &mut Pipeline| {
        pipeline.driver = Driver::Pushed(Arc::new(arrow_schema::Schema::empty()));
        pipeline.steps.clear();
    };
    assert_eq!(setup.plan_error(pushed), PlanError::NoSteps);
    let semi = |pipeline: &mut Pipeline| {
        pipeline.steps[0].join = Join::LeftSemi;
        pipeline.steps[0].keep = Some(vec![3]);
    };
    assert_eq!(setup.plan_error(semi), PlanError::ColumnOutOfRange { step: Some(0), column: 3, columns: 3 });
    assert_eq!(
        setup.plan_error(|pipeline| pipeline.steps[0].keep = Some(vec![4])),
        PlanError::ColumnOutOfRange { step: Some(0), column: 4, columns: 4 }
    );
    assert_eq!(
        setup.plan_error(|pipeline| pipeline.steps[0].key = vec![KeyPart::Column(1); 3]),
        PlanError::TooManyKeyParts { step: 0, parts: 3, key_columns: 2 }
    );
    assert_eq!(
        setup.plan_error(key(KeyPart::Column(3))),
        PlanError::KeyColumnOutOfRange { step: 0, part: 0, column: 3, columns: 3 }
    );
    assert_eq!(setup.plan_error(key(numbers(2))), PlanError::ConstantLength { step: 0, part: 0, values: 2 });
    assert!(matches!(setup.plan_error(key(text)), PlanError::KeyType { step: 0, part: 0, .. }));
    let Err(Error::Plan(error)) = collect(setup.executor.scan(
        Scan {
            view: setup.database.views[0].clone(),
            ranges: vec![KeyRange::all()],
            direction: Direction::Ascending,
            columns: vec![4],
            filters: Vec::new(),
            limit: None,
            batch_rows: 1,
            kept: Vec::new(),
        },
        ExecutionMode::InOrder,
    )) else {
        panic!("the column was accepted")
    };
    assert_eq!(error.to_string(), "column 4 is out of range, 4 columns exist");
}

/// A pipeline over pushed rows, each of which is a number k of the first table.
fn pushing(setup: &Setup, mode: ExecutionMode) -> Rows {
    let field = arrow_schema::Field::new("k", arrow_schema::DataType::Int64, true);
    let mut pipeline = setup.pipeline(mode, KeyPart::Column(0), None);
    pipeline.driver = Driver::Pushed(Arc::new(arrow_schema::Schema::new(vec![field])));
    setup.executor.pipeline(pipeline)
}

#[test]
fn pushed_rows_of_another_schema_are_refused() {
    let setup = Setup::new();
    for mode in [ExecutionMode::OutOfOrder, ExecutionMode::InOrder] {
        let rows = pushing(&setup, mode);
        let text = Arc::new(StringViewArray::from(vec!["a"])) as ArrayRef;
        let batch = RecordBatch::try_from_iter([("k", text)]).unwrap();
        assert!(matches!(rows.push(&batch), Err(Error::Plan(PlanError::PushedColumns { .. }))), "{mode:?}");
    }
    setup.check_intact();
}

#[test]
fn pipelines_dropped_while_rows_are_pushed_end() {
    let setup = Setup::new();
    for mode in [ExecutionMode::OutOfOrder, ExecutionMode::InOrder] {
        for batches in 0..4 {
            let rows = pushing(&setup, mode);
            let numbers = Arc::new(Int64Array::from_iter_values(0..500)) as ArrayRef;
            let batch = RecordBatch::try_from_iter_with_nullable([("k", numbers, true)]).unwrap();
            for _ in 0..batches {
                rows.push(&batch).unwrap();
            }
        }
    }
    common::eventually("all fibers end", || setup.executor.fiber_count() == 0);
    setup.check_intact();
}
