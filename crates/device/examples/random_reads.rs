//! Reads at random from a file at the maximum rate of one worker: `random_reads FILE [REQUEST_BYTES [DEPTH [SECONDS
//! [DEVICE]]]]`.
//!
//! A missing file is created with 1 GiB and kept. With a DEVICE, such as `array(40 ssd)`, the reads are slowed down to
//! its speed, and the example prints the rate of the model for comparison. Run it with `KEYAKI_IO=threads` to compare the thread pool with
//! io_uring.

use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use keyaki_device::calibrate::Calibration;
use keyaki_device::model::DeviceSpec;
use keyaki_device::paced::Paced;
use keyaki_device::{BLOCK, Buffer, Device, File, Op, OpenMode, Request, Wait, open_cached, open_default};
use keyaki_primitives::Random;

const USAGE: &str = "usage: random_reads FILE [REQUEST_BYTES [DEPTH [SECONDS [DEVICE]]]]";

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = PathBuf::from(arguments.next().ok_or(USAGE)?);
    let mut number = |default: u64| arguments.next().map_or(Ok(default), |argument| argument.parse());
    let (request_bytes, depth, seconds) = (number(4096)? as usize, number(128)? as usize, number(5)?);
    if request_bytes == 0 || !request_bytes.is_multiple_of(BLOCK) {
        return Err(format!("the request size must be a multiple of {BLOCK}").into());
    }

    let model = arguments.next().map(|text| text.parse::<DeviceSpec>()).transpose()?.map(|spec| spec.model());
    let device: Arc<dyn Device> = match model {
        Some(model) => Arc::new(Paced::new(open_cached()?, model)),
        None => open_default()?,
    };
    let file = open_or_create(device.as_ref(), &path)?;
    let slots = file.len()? / request_bytes as u64;
    if slots == 0 {
        return Err("the file is shorter than one request".into());
    }

    let mut queue = device.queue(depth)?;
    let mut random = Random::new(1);
    let mut completed = Vec::with_capacity(depth);
    let (cpu_before, start) = (cpu_time(), Instant::now());
    let duration = Duration::from_secs(seconds);
    let (mut reads, mut calls) = (0_u64, 0_u64);
    while start.elapsed() < duration {
        // Fill the queue, then submit the new requests and wait for completions in one system call.
        while queue.in_flight() < depth {
            let offset = random.below(slots) * request_bytes as u64;
            let op = Op::Read(queue.buffer(request_bytes));
            queue.push(Request { file: file.clone(), offset, op, tag: reads });
        }
        queue.complete(Wait::Until(None), &mut completed)?;
        calls += 1;
        for completion in completed.drain(..) {
            completion.result?;
            reads += 1;
        }
    }
    let elapsed = start.elapsed().as_secs_f64();
    let iops = reads as f64 / elapsed;
    println!(
        "{}: {request_bytes} bytes, depth {depth}: {iops:.0} reads/s, {:.0} MB/s, {:.1} reads per call",
        device.name(),
        iops * request_bytes as f64 / 1e6,
        reads as f64 / calls as f64,
    );
    if let Some(model) = model {
        let modelled = Calibration::of_model(model).iops(request_bytes as u64, depth);
        let late_us = depth as f64 * (1.0 / iops - 1.0 / modelled) * 1e6;
        println!("the model: {modelled:.0} reads/s; each read completed {late_us:.1} µs late on average");
    }
    if let (Some(before), Some(after)) = (cpu_before, cpu_time()) {
        let per_read = |ticks: u64| ticks as f64 * 1e4 / reads as f64;
        println!(
            "CPU per read: {:.2} µs user, {:.2} µs system",
            per_read(after.0 - before.0),
            per_read(after.1 - before.1)
        );
    }
    Ok(())
}

fn open_or_create(device: &dyn Device, path: &std::path::Path) -> Result<Arc<dyn File>, Box<dyn Error>> {
    if device.exists(path)? {
        return Ok(device.open(path, OpenMode::Read)?);
    }
    let file = device.open(path, OpenMode::CreateNew)?;
    let mut buffer = Buffer::zeroed(1 << 20);
    for (i, byte) in buffer.iter_mut().enumerate() {
        *byte = (i * 31 % 251) as u8;
    }
    for megabyte in 0..1024 {
        file.write_at(megabyte << 20, &buffer)?;
    }
    file.sync_data()?;
    Ok(file)
}

/// User and system CPU time of this process in ticks of 10 ms; `None` on systems other than Linux.
fn cpu_time() -> Option<(u64, u64)> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The fields after the program's name, which may contain spaces and ends with the last parenthesis.
    let mut fields = stat[stat.rfind(')')? + 1..].split_ascii_whitespace().skip(11);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}
