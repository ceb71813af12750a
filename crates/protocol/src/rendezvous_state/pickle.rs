//! A reader of pickles for data only: it calls nothing, imports nothing, and refuses every opcode that a
//! rendezvous state does not need.
//!
//! Values refer to each other by number, and nothing here is recursive. So neither depth nor sharing costs
//! more than the bytes that describe it.

use std::cmp::Ordering;

use super::UnreadableState::{self, CutOff, ForbiddenName, ForbiddenOpcode, Malformed, NotAPickle, TooDeep};
use super::moment::{UtcMicros, delta};

/// Most values on the stack. Python writes dicts and sets in batches of 1000.
const MAX_STACK: usize = 8192;

/// Most nested batches. A state has three: its fields, its participants, and the fields of a participant.
const MAX_MARKS: usize = 16;

/// The classes that a state contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    State,
    Node,
    Datetime,
    Timezone,
    Timedelta,
    /// The state of a node's workers.
    WorkerState,
}

impl Class {
    fn named(module: &[u8], name: &[u8]) -> Option<Self> {
        const TORCH: &[u8] = b"torch.distributed.elastic.rendezvous.dynamic_rendezvous";
        // A copy of torch's handler with one more table, `worker_states`, whose values are torch's
        // enumeration.
        const NVIDIA: &[u8] = b"nvidia_resiliency_ext.fault_tolerance._ft_rendezvous";
        const AGENT: &[u8] = b"torch.distributed.elastic.agent.server.api";
        match (module, name) {
            (TORCH | NVIDIA, b"_RendezvousState") => Some(Self::State),
            (TORCH | NVIDIA, b"_NodeDesc") => Some(Self::Node),
            (AGENT, b"WorkerState") => Some(Self::WorkerState),
            (b"datetime", b"datetime") => Some(Self::Datetime),
            (b"datetime", b"timezone") => Some(Self::Timezone),
            (b"datetime", b"timedelta") => Some(Self::Timedelta),
            _ => None,
        }
    }
}

/// One value. Containers and objects are numbers into the [`Pickle`], because a pickle may refer to one of
/// them many times.
#[derive(Debug, Clone, Copy)]
pub(super) enum Value<'a> {
    None,
    Boolean(bool),
    Integer(i64),
    Text(&'a [u8]),
    Bytes(&'a [u8]),
    /// Up to three values: the first index in `tuples`, and their number.
    Tuple(usize, u8),
    /// Index in `dicts`.
    Dict(usize),
    /// Index in `lists`, also for sets.
    List(usize),
    Class(Class),
    /// Index in `objects`.
    Object(usize),
    /// A `timedelta` in microseconds.
    Delta(i64),
    /// Microseconds ahead of UTC.
    Zone(i64),
    Moment(UtcMicros),
}

type Pair<'a> = (Value<'a>, Value<'a>);

/// A pickle that has been read.
#[derive(Debug)]
pub(super) struct Pickle<'a> {
    pub(super) root: Value<'a>,
    dicts: Vec<Vec<Pair<'a>>>,
    lists: Vec<Vec<Value<'a>>>,
    objects: Vec<Object>,
}

#[derive(Debug)]
struct Object {
    class: Class,
    /// Index of the dict with the fields.
    fields: Option<usize>,
}

impl<'a> Pickle<'a> {
    /// How many objects there are; they are numbered from 0.
    pub(super) fn objects(&self) -> usize {
        self.objects.len()
    }

    /// The fields of `value` if it is an object of `class`.
    pub(super) fn fields(&self, value: Value<'a>, class: Class) -> Option<&[Pair<'a>]> {
        let Value::Object(id) = value else { return None };
        let object = self.objects.get(id)?;
        if object.class != class {
            return None;
        }
        self.pairs(Value::Dict(object.fields?))
    }

    /// Keys and values of a dict, including repeated keys.
    pub(super) fn pairs(&self, value: Value<'a>) -> Option<&[Pair<'a>]> {
        match value {
            Value::Dict(id) => self.dicts.get(id).map(Vec::as_slice),
            _ => None,
        }
    }

    /// Items of a set or list.
    pub(super) fn items(&self, value: Value<'a>) -> Option<&[Value<'a>]> {
        match value {
            Value::List(id) => self.lists.get(id).map(Vec::as_slice),
            _ => None,
        }
    }
}

/// Reads a whole pickle of protocol 4 or 5.
pub(super) fn load(bytes: &[u8]) -> Result<Pickle<'_>, UnreadableState> {
    let [0x80, 4 | 5, ..] = bytes else { return Err(NotAPickle) };
    let pickle = Pickle { root: Value::None, dicts: Vec::new(), lists: Vec::new(), objects: Vec::new() };
    let mut machine = Machine {
        bytes,
        at: 2,
        stack: Vec::new(),
        marks: Vec::new(),
        memo: Vec::new(),
        tuples: Vec::new(),
        pickle,
    };
    while machine.step()? {}
    if machine.at == bytes.len() { Ok(machine.pickle) } else { Err(Malformed { at: machine.at }) }
}

struct Machine<'a> {
    bytes: &'a [u8],
    /// The number of bytes that were read.
    at: usize,
    stack: Vec<Value<'a>>,
    /// Heights of the stack where batches began. Values below the last height stay untouched until that batch
    /// ends.
    marks: Vec<usize>,
    memo: Vec<Value<'a>>,
    tuples: Vec<Value<'a>>,
    pickle: Pickle<'a>,
}

type Step<T> = Result<T, UnreadableState>;

impl<'a> Machine<'a> {
    /// Executes one instruction. `false` if it was the last one.
    fn step(&mut self) -> Step<bool> {
        let opcode = self.byte()?;
        match opcode {
            b'.' => return self.stop(),
            // FRAME: the number of bytes until the next frame. It is not needed.
            0x95 => {
                if u64::from_le_bytes(self.array()?) > self.bytes.len().saturating_sub(self.at) as u64 {
                    return Err(CutOff { len: self.bytes.len() });
                }
            }
            b'(' if self.marks.len() == MAX_MARKS => return Err(TooDeep { at: self.at }),
            b'(' => self.marks.push(self.stack.len()),
            0x94 => self.memoize(self.memo.len())?,
            b'q' => {
                let slot = self.byte()?;
                self.memoize(slot.into())?;
            }
            b'r' => {
                let slot = u32::from_le_bytes(self.array()?);
                self.memoize(slot as usize)?;
            }
            b's' | b'u' | 0x90 | b'e' | b'b' => self.fill(opcode)?,
            _ => {
                let value = self.value(opcode)?;
                if self.stack.len() == MAX_STACK {
                    return Err(TooDeep { at: self.at });
                }
                self.stack.push(value);
            }
        }
        Ok(true)
    }

    /// The value that an instruction puts on the stack.
    fn value(&mut self, opcode: u8) -> Step<Value<'a>> {
        Ok(match opcode {
            b'N' => Value::None,
            0x88 => Value::Boolean(true),
            0x89 => Value::Boolean(false),
            b'K' => Value::Integer(self.byte()?.into()),
            b'M' => Value::Integer(u16::from_le_bytes(self.array()?).into()),
            b'J' => Value::Integer(i32::from_le_bytes(self.array()?).into()),
            0x8a => self.long()?,
            0x8c => {
                let len = self.byte()?;
                Value::Text(self.take(len.into())?)
            }
            b'X' => {
                let len = u32::from_le_bytes(self.array()?);
                Value::Text(self.take(len as usize)?)
            }
            b'C' => {
                let len = self.byte()?;
                Value::Bytes(self.take(len.into())?)
            }
            b'h' => {
                let slot = self.byte()?;
                self.recall(slot.into())?
            }
            b'j' => {
                let slot = u32::from_le_bytes(self.array()?);
                self.recall(slot as usize)?
            }
            b')' => self.tuple(0)?,
            0x85 => self.tuple(1)?,
            0x86 => self.tuple(2)?,
            0x87 => self.tuple(3)?,
            b'}' => {
                let id = self.pickle.dicts.len();
                self.pickle.dicts.push(Vec::new());
                Value::Dict(id)
            }
            0x8f | b']' => {
                let id = self.pickle.lists.len();
                self.pickle.lists.push(Vec::new());
                Value::List(id)
            }
            0x93 => self.class()?,
            0x81 => self.object()?,
            b'R' => self.reduce()?,
            code => return Err(ForbiddenOpcode { code, at: self.opcode_at() }),
        })
    }

    /// SETITEM, SETITEMS, ADDITEMS, APPENDS and BUILD: put values into the container below them.
    fn fill(&mut self, opcode: u8) -> Step<()> {
        let malformed = Malformed { at: self.opcode_at() };
        let from = match opcode {
            b's' => self.stack.len().checked_sub(2),
            b'b' => self.stack.len().checked_sub(1),
            _ => self.marks.pop(),
        };
        let from = from.filter(|&from| from > self.fence()).ok_or(malformed)?;
        let (below, _) = self.stack.split_at(from);
        let Some(&target) = below.last() else { return Err(malformed) };
        let values = self.stack.drain(from..);
        match (opcode, target) {
            (b's' | b'u', Value::Dict(id)) if values.len().is_multiple_of(2) => {
                let pairs = values.as_slice().chunks_exact(2).map(|pair| (pair[0], pair[1]));
                self.pickle.dicts[id].extend(pairs);
            }
            (0x90 | b'e', Value::List(id)) => self.pickle.lists[id].extend(values),
            (b'b', Value::Object(id)) => match (values.as_slice(), &mut self.pickle.objects[id].fields) {
                (&[Value::Dict(dict)], fields @ None) => *fields = Some(dict),
                _ => return Err(malformed),
            },
            _ => return Err(malformed),
        }
        Ok(())
    }

    fn stop(&mut self) -> Step<bool> {
        match (self.stack.as_slice(), self.marks.as_slice()) {
            (&[root], []) => self.pickle.root = root,
            _ => return Err(Malformed { at: self.opcode_at() }),
        }
        Ok(false)
    }

    /// LONG1: a length, and that many little-endian bytes. A state needs no more than eight.
    fn long(&mut self) -> Step<Value<'a>> {
        let at = self.opcode_at();
        let len = self.byte()?;
        let bytes = self.take(len.into())?;
        let mut number = match bytes.last() {
            _ if bytes.len() > 8 => return Err(Malformed { at }),
            Some(0x80..) => [0xff; 8],
            _ => [0; 8],
        };
        number[..bytes.len()].copy_from_slice(bytes);
        Ok(Value::Integer(i64::from_le_bytes(number)))
    }

    fn memoize(&mut self, slot: usize) -> Step<()> {
        let value = *self.stack[self.fence()..].last().ok_or(Malformed { at: self.at })?;
        match self.memo.len().cmp(&slot) {
            Ordering::Greater => self.memo[slot] = value,
            Ordering::Equal => self.memo.push(value),
            // Python numbers its memo slots without gaps.
            Ordering::Less => return Err(Malformed { at: self.at }),
        }
        Ok(())
    }

    fn recall(&self, slot: usize) -> Step<Value<'a>> {
        self.memo.get(slot).copied().ok_or(Malformed { at: self.at })
    }

    fn tuple(&mut self, len: u8) -> Step<Value<'a>> {
        let from = self.stack.len().checked_sub(len.into()).filter(|&from| from >= self.fence());
        let from = from.ok_or(Malformed { at: self.opcode_at() })?;
        let start = self.tuples.len();
        self.tuples.extend(self.stack.drain(from..));
        Ok(Value::Tuple(start, len))
    }

    /// STACK_GLOBAL: a class by its name, if it is one of the known ones.
    fn class(&mut self) -> Step<Value<'a>> {
        let at = self.opcode_at();
        match self.pop_two()? {
            (Value::Text(module), Value::Text(name)) => {
                Class::named(module, name).map(Value::Class).ok_or(ForbiddenName { at })
            }
            _ => Err(Malformed { at }),
        }
    }

    /// NEWOBJ: an object without fields yet.
    fn object(&mut self) -> Step<Value<'a>> {
        let at = self.opcode_at();
        match self.pop_two()? {
            (Value::Class(class @ (Class::State | Class::Node)), Value::Tuple(_, 0)) => {
                let id = self.pickle.objects.len();
                self.pickle.objects.push(Object { class, fields: None });
                Ok(Value::Object(id))
            }
            _ => Err(Malformed { at }),
        }
    }

    /// REDUCE, which can call anything in Python. Here it makes only the three classes of `datetime` and a
    /// member of one enumeration, without a call.
    fn reduce(&mut self) -> Step<Value<'a>> {
        let at = self.opcode_at();
        let (Value::Class(class), Value::Tuple(start, len)) = self.pop_two()? else {
            return Err(Malformed { at });
        };
        let made = match (class, &self.tuples[start..][..usize::from(len)]) {
            (Class::Timedelta, &[Value::Integer(days), Value::Integer(seconds), Value::Integer(micros)]) => {
                delta(days, seconds, micros).map(Value::Delta)
            }
            (Class::Timezone, &[Value::Delta(offset)]) => Some(Value::Zone(offset)),
            (Class::Datetime, &[Value::Bytes(bytes)]) => naive(bytes).map(Value::Moment),
            (Class::Datetime, &[Value::Bytes(bytes), Value::Zone(offset)]) => {
                naive(bytes).and_then(|naive| naive.in_zone(offset)).map(Value::Moment)
            }
            // A member of the enumeration is made from its value.
            (Class::WorkerState, &[value @ Value::Text(_)]) => Some(value),
            _ => None,
        };
        made.ok_or(Malformed { at })
    }

    fn pop_two(&mut self) -> Step<(Value<'a>, Value<'a>)> {
        match self.stack[self.fence()..] {
            [.., below, top] => {
                self.stack.truncate(self.stack.len().saturating_sub(2));
                Ok((below, top))
            }
            _ => Err(Malformed { at: self.opcode_at() }),
        }
    }

    fn fence(&self) -> usize {
        self.marks.last().copied().unwrap_or(0)
    }

    /// The offset of the present instruction: reading its opcode has moved on by one.
    fn opcode_at(&self) -> usize {
        self.at.saturating_sub(1)
    }

    fn byte(&mut self) -> Step<u8> {
        self.array().map(|[byte]| byte)
    }

    fn array<const N: usize>(&mut self) -> Step<[u8; N]> {
        let cut_off = CutOff { len: self.bytes.len() };
        let array = self.bytes[self.at..].first_chunk().ok_or(cut_off)?;
        self.at = self.at.saturating_add(N);
        Ok(*array)
    }

    fn take(&mut self, len: usize) -> Step<&'a [u8]> {
        let taken = self.bytes[self.at..].get(..len).ok_or(CutOff { len: self.bytes.len() })?;
        self.at = self.at.saturating_add(len);
        Ok(taken)
    }
}

fn naive(bytes: &[u8]) -> Option<UtcMicros> {
    UtcMicros::from_datetime(bytes.try_into().ok()?)
}
