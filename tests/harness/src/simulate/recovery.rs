//! Faults and restarts, and the commits that must survive them.
//!
//! A restart cuts the power, so that it decides about all writes that were not synced, and opens the database again.
//! Every acknowledged commit must survive. A commit whose statement has failed with an error of the device survives
//! completely or not at all. On a damaged device the database may not open. If it does, its contents must be those of a
//! commit since the damage, or of the one before: recovery takes a damaged newest group of the log for a torn one.

use std::path::Path;

use keyaki_device::simulated::{FaultKind, Model as Speed, Simulated, SimulatedOptions};

use super::database::{Contents, DIRECTORY, Failed, Sizes, files};
use super::model::Model;
use super::runner::{Checked, Faults, Problem, Runner};
use super::state::State;
use super::steps::{Damage, Fault, SESSIONS, Statement};

/// Values of a sequence that a restart can lose.
const VALUES_LOST: i64 = 64;
/// Bits flip in the first part of each file: its end may be reserved space.
const ROT_BYTES: u64 = 600_000;
/// Tables of a new database.
const TABLES_FIRST: usize = 3;
/// Attempts to write a checkpoint, every 100 ms, after a full disk has space again.
const CHECKPOINTS: usize = 300;

impl Runner {
    /// Plans a fault of the device.
    pub(super) fn fault(&mut self, fault: &Fault) -> Checked {
        match fault {
            Fault::PowerFailure(after) => self.simulated.crash_after_operations(*after),
            Fault::Write { after, no_space } => {
                let kind = if *no_space { FaultKind::NoSpace } else { FaultKind::Eio };
                self.simulated.fail_after(*after, kind);
                self.faults.limited |= no_space;
            }
            Fault::Sync { after, no_space: true } => self.simulated.fail_sync_without_space(*after),
            Fault::Sync { after, no_space: false } => self.simulated.fail_sync(*after),
            Fault::Reads { position, bytes, reads } => {
                let data = Path::new(DIRECTORY).join("data");
                let len = files(&self.simulated, DIRECTORY).iter().find(|(path, _)| *path == data).map_or(0, |f| f.1);
                let start = len.min(ROT_BYTES) * position / 1000;
                let planned = self.simulated.fail_next_reads(&data, start..start + bytes, *reads);
                planned.map_err(|error| Problem::new("device", "a data file", error.to_string()))?;
            }
            Fault::Capacity(free) => {
                self.simulated.set_capacity(Some(self.simulated.used_bytes() + free));
                self.faults.limited = true;
                return Ok(());
            }
            Fault::Delays(slow) => {
                self.simulated.set_model(if *slow { Speed::nvme() } else { Speed::instant() });
                return Ok(());
            }
        }
        self.faults.failing = true;
        Ok(())
    }

    /// Ends all faults. After failed calls the database starts again; after a full disk it must go on without.
    pub(super) fn heal(&mut self) -> Checked {
        let (failing, limited) = (self.faults.failing, self.faults.limited);
        self.simulated.set_capacity(None);
        if failing {
            self.recover(None, &[])?;
        } else if limited {
            self.reclaim()?;
        }
        self.faults.limited = false;
        Ok(())
    }

    /// Writes a checkpoint after a full disk has space again.
    fn reclaim(&mut self) -> Checked {
        let mut last = Ok(());
        for _ in 0..CHECKPOINTS {
            match self.administer("CHECKPOINT") {
                Ok(_) => return Ok(()),
                Err(error) => last = self.tolerate("a checkpoint on a disk with space", &error),
            }
            last.clone()?;
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        // The last error was that of a full disk, or the device is damaged.
        match self.faults.damaged {
            Some(_) => last,
            None => Err(Problem::new("full disk", "a checkpoint on a disk with space", "no space")),
        }
    }

    /// Damages the device without an error.
    pub(super) fn damage(&mut self, damage: &Damage) -> Checked {
        self.faults.damaged.get_or_insert_with(|| vec![self.model.previous.clone(), self.model.committed.clone()]);
        match damage {
            Damage::Rot(seeds) => {
                let files = files(&self.simulated, DIRECTORY);
                let files: Vec<_> = files.into_iter().filter(|(_, len)| *len > 0).collect();
                for seed in seeds {
                    // Most of the bits are those of the data file.
                    let data = files.iter().find(|(path, _)| path.ends_with("data"));
                    let any = files.get((*seed >> 40) as usize % files.len().max(1));
                    let Some((path, len)) = data.filter(|_| seed % 4 > 0).or(any) else { continue };
                    let flipped =
                        self.simulated.flip_bit(path, (seed >> 16) % len.min(&ROT_BYTES), (seed >> 8) as u8 % 8);
                    flipped.map_err(|error| Problem::new("device", "a bit that flips", error.to_string()))?;
                }
            }
            Damage::Lost(after) => self.simulated.fail_after(*after, FaultKind::Lose),
            Damage::Misdirected { after, blocks } => {
                self.simulated.fail_after(*after, FaultKind::Misdirect { blocks: *blocks });
            }
            Damage::LyingSyncs => self.simulated.set_lying_syncs(true),
        }
        Ok(())
    }

    /// Begins again with an empty device.
    pub(super) fn new_database(&mut self) -> Checked {
        self.follower = None;
        self.close();
        let seed = self.random.next_u64();
        self.simulated = Simulated::new(SimulatedOptions { seed, ..Default::default() });
        self.sizes = Sizes::new(&mut self.random);
        self.model = Model::default();
        self.model.has_exact_conflicts = self.sizes.has_ample_buffers();
        self.faults = Faults::default();
        self.open().map_err(|error| Problem::error("a new database", &error))?;
        self.administer("CREATE SEQUENCE s").map_err(|error| Problem::error("a sequence", &error))?;
        for table in 0..TABLES_FIRST {
            self.run_statement(0, &Statement::CreateTable { table, checked: table == 1, compression: "zstd" })?;
        }
        Ok(())
    }

    /// Closes the database, with a checkpoint if the device works.
    fn close(&mut self) {
        self.end_sessions();
        self.database = None;
    }

    fn open(&mut self) -> Result<(), Failed> {
        let database = self.sizes.open(&self.simulated, DIRECTORY, &self.runtime)?;
        self.sessions = (0..SESSIONS).map(|_| database.session()).collect();
        self.database = Some(database);
        Ok(())
    }

    /// Closes the database and opens it again.
    pub(super) fn reopen(&mut self) -> Checked {
        if self.faults.failing {
            // Data covered by a failed sync may or may not be durable. A restart decides.
            return self.recover(None, &[]);
        }
        self.close();
        if self.faults.limited || self.faults.damaged.is_some() {
            self.model.values_missing += VALUES_LOST;
        }
        self.open_again(None)
    }

    /// Cuts the power, opens the database again, and checks which commits it has. `pending` is the state after a commit
    /// that was not acknowledged. The power also fails during recovery, after `during` operations.
    pub(super) fn recover(&mut self, pending: Option<State>, during: &[u64]) -> Checked {
        self.power_off();
        // A power failure ends all threads of all processes.
        self.follower = None;
        self.close();
        self.simulated.crash();
        self.simulated.clear_faults();
        self.counts.restarts += 1;
        self.model.values_missing += VALUES_LOST * (1 + during.len() as i64);
        for operations in during {
            self.simulated.crash_after_operations(*operations);
            let opened = self.open();
            self.power_off();
            self.close();
            self.simulated.crash();
            if let Err(error) = opened
                && !error.is_device()
                && !(error.is_disk_full() && self.faults.limited)
                && !(error.is_damage() && self.faults.damaged.is_some())
            {
                return Err(Problem::error("recovery, or an error of the device", &error));
            }
        }
        self.faults.failing = false;
        self.open_again(pending)
    }

    fn power_off(&mut self) {
        if !self.simulated.is_down() {
            self.simulated.crash_after_operations(0);
            // The call fails, because the power fails during it.
            let _ = keyaki_device::Device::sync_dir(&self.simulated, Path::new("/"));
        }
    }

    /// Opens the database and finds out which commits it has.
    fn open_again(&mut self, pending: Option<State>) -> Checked {
        let mut opened = self.open();
        if opened.as_ref().is_err_and(Failed::is_disk_full) && self.faults.limited {
            // A full disk may have no space for the log of an open database.
            self.simulated.set_capacity(None);
            self.faults.limited = false;
            opened = self.open();
        }
        let read = match opened {
            Ok(()) => Contents::of_database(&self.runtime, self.database()),
            Err(error) => Err(error),
        };
        let found = match read {
            Ok(found) => found,
            Err(error) if self.faults.damaged.is_some() && error.is_damage() => {
                self.counts.device_errors += 1;
                return self.new_database();
            }
            Err(error) => return Err(Problem::error("the database after a restart", &error)),
        };
        let mut states = match &self.faults.damaged {
            Some(states) => states.clone(),
            None => vec![self.model.committed.clone()],
        };
        let has_pending = pending.is_some();
        states.extend(pending);
        let position = states.iter().rposition(|state| Contents::of_state(state).difference(&found).is_none());
        let Some(position) = position else {
            let (expected, found) = Contents::of_state(&self.model.committed).difference(&found).unwrap_or_default();
            let choice = if has_pending { " (or the commit that was not acknowledged)" } else { "" };
            return Err(Problem::new("recovery", format!("{expected}{choice}"), found));
        };
        self.counts.unacknowledged += u64::from(has_pending && position + 1 == states.len());
        let state = states.swap_remove(position);
        self.model.restart(state.clone());
        if let Some(states) = &mut self.faults.damaged {
            states.push(state);
        }
        self.check()
    }
}
