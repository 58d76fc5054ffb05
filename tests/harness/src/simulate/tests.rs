//! The simulation itself: it passes, it repeats, and it finds wrong answers.

use super::generate::Generator;
use super::model::{Ending, Model, Start};
use super::runner::Runner;
use super::steps::{Fault, Isolation, OnConflict, Statement, Step};
use super::{execute, steps::NewRow};

fn insert(k: i64) -> Step {
    let rows = vec![NewRow { k, a: Some(1), b: Some(k), c: None }];
    Step::Run { session: 0, statement: Statement::Insert { table: 0, rows, on_conflict: OnConflict::Error } }
}

#[test]
fn fixed_seeds_pass() {
    for seed in 1..=2 {
        let steps = Generator::new(seed).steps(300);
        if let Err(failure) = execute(seed, &steps, false) {
            panic!("seed {seed}, step {}: {}: {failure:?}", failure.step, steps[failure.step]);
        }
    }
}

#[test]
fn equal_seeds_make_equal_steps() {
    assert_eq!(Generator::new(7).steps(500), Generator::new(7).steps(500));
    assert_ne!(Generator::new(7).steps(500), Generator::new(8).steps(500));
    assert_eq!(Generator::new(7).steps(500)[..100], Generator::new(7).steps(100));
}

#[test]
fn changes_outside_of_the_model_are_found() {
    for (sql, kind) in [
        ("DELETE FROM t0 WHERE k = 2", "other contents"),
        ("UPDATE t0 SET b = 9 WHERE k = 1", "other contents"),
        ("CREATE INDEX extra ON t0 (a)", "other contents"),
        ("CREATE TABLE t3 (k BIGINT PRIMARY KEY)", "other contents"),
    ] {
        let mut runner = Runner::new(1).unwrap();
        for step in [insert(1), insert(2)] {
            runner.step(&step).unwrap();
        }
        runner.step(&Step::Verify).unwrap();
        runner.administer(sql).unwrap();
        assert_eq!(runner.step(&Step::Verify).unwrap_err().kind, kind, "{sql}");
    }
}

#[test]
fn lost_commits_are_found() {
    let mut runner = Runner::new(1).unwrap();
    runner.step(&insert(1)).unwrap();
    // The model does not expect lying syncs here.
    let lost = (2..40).any(|k| {
        runner.simulated.set_lying_syncs(true);
        runner.step(&insert(k)).unwrap();
        runner.step(&Step::Crash(Vec::new())).is_err_and(|problem| problem.kind == "recovery")
    });
    assert!(lost, "no lying sync has lost a commit");
}

#[test]
fn conflicts_must_be_found() {
    let begin = |model: &mut Model, session| {
        model.begin(session, Isolation::RepeatableRead);
        assert_eq!(model.start(session), Start::Success);
    };
    let run = |model: &mut Model, session: usize, statement: &Statement| {
        let effect = model.expect(session, statement).effect.expect("the statement succeeds");
        model.apply(session, effect);
    };
    let (mut model, table) = (Model::default(), 0);
    model.has_exact_conflicts = true;
    run(&mut model, 3, &Statement::CreateTable { table, checked: false, compression: "lz4" });
    let Step::Run { statement: first, .. } = insert(1) else { panic!("a statement") };
    let Step::Run { statement: second, .. } = insert(2) else { panic!("a statement") };
    // The same row.
    begin(&mut model, 0);
    begin(&mut model, 1);
    run(&mut model, 0, &first);
    run(&mut model, 1, &first);
    let Ending::Commit { state, may_fail: false } = model.ending(0) else { panic!("the first commit succeeds") };
    model.committed(0, state);
    assert!(matches!(model.ending(1), Ending::Conflict(_)));
    model.roll_back(1);
    // Another definition, and one that is the same again.
    for (is_removed, conflicts) in [(false, true), (true, false)] {
        begin(&mut model, 0);
        run(&mut model, 0, &second);
        run(&mut model, 1, &Statement::AddCheck { table });
        if is_removed {
            run(&mut model, 1, &Statement::DropCheck { table });
        }
        assert_eq!(matches!(model.ending(0), Ending::Conflict(_)), conflicts);
        model.roll_back(0);
        if !is_removed {
            run(&mut model, 1, &Statement::DropCheck { table });
        }
    }
}

#[test]
fn power_failures_at_every_operation() {
    for after in 0..40 {
        let mut runner = Runner::new(after).unwrap();
        let mut steps = vec![insert(0), Step::Fault(Fault::PowerFailure(after))];
        steps.extend((1..20).map(insert));
        steps.push(Step::Verify);
        for step in steps {
            runner.step(&step).unwrap();
        }
    }
}
