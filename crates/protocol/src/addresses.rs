//! What the values show by which ranks meet: the address that gloo writes, and the NCCL id.

use std::net::IpAddr;

use super::ids::is_plain;

/// A group of more ranks is taken for a value of another kind.
pub const MOST_RANKS: u32 = 131_072;

/// What a gloo address shows.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GlooAddress {
    /// The host of its process.
    pub host: Option<String>,
    /// How many ranks its group has.
    pub size: Option<u32>,
    /// Where the process listens for the others.
    pub listens: Option<IpAddr>,
}

/// Reads the value that a rank writes under `…//cpu//G/r`: a host name with its length, an address with its
/// length, and 8 bytes for each rank of the group (seen with 2.4.1 and 2.15.0 at 2, 4 and 8 ranks). Older
/// releases write a socket address of 128 bytes and a number of 8 for each other rank, without a host name
/// (seen with 2.1.2 at 2 and 3 ranks).
pub fn read_gloo(value: &[u8]) -> GlooAddress {
    const LONGEST_HOST: usize = 256;
    const OLD_PAIR: usize = 136;
    if !value.is_empty()
        && value.len().is_multiple_of(OLD_PAIR)
        && value.chunks(OLD_PAIR).all(|pair| socket_address(pair).is_some())
    {
        let size = u32::try_from((value.len() / OLD_PAIR).saturating_add(1))
            .ok()
            .filter(|ranks| *ranks <= MOST_RANKS);
        return GlooAddress { host: None, size, listens: socket_address(value) };
    }
    let number = |bytes: &[u8]| usize::try_from(u64::from_le_bytes(bytes.try_into().ok()?)).ok();
    let read = || {
        let (len, rest) = value.split_at_checked(8)?;
        let len = number(len).filter(|len| (1..=LONGEST_HOST).contains(len))?;
        let (host, rest) = rest.split_at_checked(len)?;
        let host = std::str::from_utf8(host).ok().filter(|host| host.chars().all(is_plain))?;
        Some((host.to_owned(), rest))
    };
    let Some((host, rest)) = read() else { return GlooAddress::default() };
    let size = || {
        let (len, rest) = rest.split_at_checked(8)?;
        let rest = rest.get(number(len)?..)?;
        let ranks = u32::try_from(rest.len() / 8).ok()?;
        (rest.len() % 8 == 0 && (1..=MOST_RANKS).contains(&ranks)).then_some(ranks)
    };
    GlooAddress { host: Some(host), size: size(), listens: rest.get(8..).and_then(socket_address) }
}

/// Where rank 0 listens, as its NCCL id says: a number of 8 bytes, and a socket address.
pub fn read_nccl_id(id: &[u8]) -> Option<IpAddr> {
    const LEN: usize = 128;
    if id.len() == LEN { socket_address(id.get(8..)?) } else { None }
}

/// The address in a `sockaddr_in` or `sockaddr_in6` of Linux.
fn socket_address(bytes: &[u8]) -> Option<IpAddr> {
    let ip = match bytes.first_chunk()? {
        [2, 0] => IpAddr::from(*bytes.get(4..)?.first_chunk::<4>()?),
        [10, 0] => IpAddr::from(*bytes.get(8..)?.first_chunk::<16>()?),
        _ => return None,
    };
    Some(ip.to_canonical())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Peers write what they like.
        #[test]
        fn whatever_is_written_is_read_within_bounds(value in prop::collection::vec(any::<u8>(), 0..600)) {
            let GlooAddress { host, size, .. } = read_gloo(&value);
            prop_assert!(host.is_none_or(|host| host.len() <= value.len()));
            prop_assert!(size.is_none_or(|size| size <= MOST_RANKS));
            read_nccl_id(&value);
        }
    }

    /// As gloo writes it: a host name and an address, each behind its length, and 8 bytes for each rank.
    fn gloo(host: &str, ranks: usize) -> Vec<u8> {
        let name = [&host.len().to_le_bytes()[..], host.as_bytes()].concat();
        [name, 16_usize.to_le_bytes().to_vec(), vec![0; 16 + 8 * ranks]].concat()
    }

    #[test]
    fn a_gloo_address_tells_host_and_world_size() {
        for (host, world) in [("node2", 4_usize), ("a", 1), ("worker-0.train.svc", 4096)] {
            let read =
                GlooAddress { host: Some(host.into()), size: u32::try_from(world).ok(), listens: None };
            assert_eq!(read_gloo(&gloo(host, world)), read);
        }
        for nonsense in [&b""[..], b"1234567", &[0xff; 64], &[0; 189]] {
            assert_eq!(read_gloo(nonsense), GlooAddress::default(), "{nonsense:?}");
        }
        let mut odd = gloo("node2", 4);
        odd.push(0);
        assert_eq!(read_gloo(&odd).size, None);
    }
}
