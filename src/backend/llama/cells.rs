//! Where cells lie in a unified buffer, and what that costs: each pass looks at all up to the highest one in use.

use super::batch::Batch;
use super::context::Context;
use super::decode::now;
use super::ops::{remove, remove_range};
use super::ram::{BLOCK, share};
use super::state::{get, set};
use crate::core::{CellCost, OpResult, RequestId, Row, SeqId};
use std::time::Duration;

/// Idle cells that a pass is measured with; half of them at least.
const N_MEASURED: u32 = 4096;
/// Passes of which the shortest counts: so many, or the few that fit into so long a time.
const N_TRIES: usize = 5;
const LONGEST: Duration = Duration::from_millis(250);
/// What a pass gets longer by is not told from noise below this part of it.
const NOISE: f64 = 0.01;

/// Move cells from the top of the buffer into holes below, `n_cells` at most, by way of a sequence that nobody else uses.
/// Refused, with nothing changed, where that gains nothing.
pub(super) fn compact(context: &mut Context, passage: SeqId, n_cells: u32) -> OpResult {
    let mut n_moved = 0;
    while n_moved < n_cells {
        match lower_top(context, passage, n_cells - n_moved) {
            Ok(n) => n_moved += n,
            Err(reason) if n_moved == 0 => return OpResult::Refused(reason),
            Err(_) => break,
        }
    }
    OpResult::Done
}

/// Move what lies highest; how many cells that were.
fn lower_top(context: &mut Context, passage: SeqId, most: u32) -> Result<u32, String> {
    let span = context.span().unwrap_or(0);
    let n_used = context.used_cells(SeqId(0)).unwrap_or(span);
    let Some((range, holders)) = context.top(most.min(span - n_used)) else { return Err("there are no holes".into()) };
    let (first, n) = (range.start, range.len() as u32);
    let state = share(context, holders[0], passage, first, n).and_then(|()| get(context, passage));
    remove(context, passage, -1)?;
    // The copy takes holes; only then are the old cells given up.
    set(context, passage, &state?)?;
    let placed = context.span().unwrap_or(0);
    if placed <= span {
        for holder in holders {
            remove_range(context, holder, first, first + n)?;
            share(context, passage, holder, first, n)?;
        }
    }
    remove(context, passage, -1)?;
    if context.span().unwrap_or(0) < span { Ok(n) } else { Err("there are no holes below".into()) }
}

/// Measure what idle cells cost, and what moving some to RAM and back does. `one` holds one position; `heap` is an id that
/// cannot be computed, and ends up with idle cells.
pub(super) fn cell_cost(
    context: &mut Context,
    batch: &mut Batch,
    one: SeqId,
    passage: SeqId,
    heap: SeqId,
    n_free: u32,
) -> Result<CellCost, String> {
    let n_idle = N_MEASURED.min(n_free / 2) / BLOCK * BLOCK;
    if n_idle < N_MEASURED / 2 {
        return Ok(CellCost::default());
    }
    let near = shortest_pass(context, batch, one)?;
    // One position many times over: what the cells hold does not matter to how long it takes to look at them.
    share(context, one, passage, 0, 1)?;
    let position = get(context, passage)?;
    remove(context, passage, -1)?;
    for _ in 0..BLOCK {
        add(context, passage, heap, &position)?;
    }
    share(context, heap, passage, 0, 1)?;
    let block = get(context, passage)?;
    remove(context, passage, -1)?;
    let began = now();
    for _ in 1..n_idle / BLOCK {
        add(context, passage, heap, &block)?;
    }
    let restored = now().saturating_sub(began);
    let began = now();
    for _ in 0..4 {
        share(context, heap, passage, 0, 1)?;
        drop(get(context, passage)?);
        remove(context, passage, -1)?;
    }
    let saved = now().saturating_sub(began);
    let far = shortest_pass(context, batch, one)?;
    // A machine that got faster or slower meanwhile is not the cells' doing.
    remove(context, heap, -1)?;
    let near = near.min(shortest_pass(context, batch, one)?);
    let gained = far.saturating_sub(near.mul_f64(1.0 + NOISE));
    let per_cell = |time: Duration, n: u32| u32::try_from(time.as_nanos() / u128::from(n)).unwrap_or(u32::MAX);
    let moved = per_cell(restored, n_idle - BLOCK).saturating_add(per_cell(saved, 4 * n_idle));
    Ok(CellCost { idle_ns: per_cell(gained, n_idle), moved_ns: moved })
}

/// Add what a state holds to the heap.
fn add(context: &mut Context, passage: SeqId, heap: SeqId, state: &[u8]) -> Result<(), String> {
    set(context, passage, state)?;
    share(context, passage, heap, 0, 1)?;
    remove(context, passage, -1)
}

/// The shortest of some passes that compute a second position and take it away again.
fn shortest_pass(context: &mut Context, batch: &mut Batch, one: SeqId) -> Result<Duration, String> {
    let token = context.model.bos().unwrap_or(0);
    let row = Row { request: RequestId(0), seq: one, pos: 1, token, draws: true, scores: false };
    let mut shortest = Duration::MAX;
    let started = now();
    for _ in 0..N_TRIES {
        let began = now();
        let (code, _) = context.decode(batch, &[row])?;
        shortest = shortest.min(now().saturating_sub(began));
        remove(context, one, 1)?;
        if code != 0 {
            return Err(format!("llama_decode returned {code}"));
        }
        if now().saturating_sub(started) > LONGEST {
            break;
        }
    }
    Ok(shortest)
}
