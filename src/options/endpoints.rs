//! Options that name servers.

use super::texts::one_or_several;
use super::value::{OptionType, Range, Value};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Where a server listens: a name or an IPv4 address, and a port. llama.cpp's RPC knows no IPv6.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Endpoint {
    /// A name, or an address in four numbers.
    pub host: String,
    /// The port; 0 is for a server that takes any.
    pub port: u16,
}

impl Endpoint {
    /// Read `host:port`.
    ///
    /// # Errors
    /// What is wrong with it ("must be …").
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong = |why: &str| format!("must be \"host:port\", not {text:?}{why}");
        if text.starts_with('[') || text.matches(':').count() > 1 {
            return Err(wrong(" (llama.cpp's RPC knows no IPv6)"));
        }
        let (host, port) = text.split_once(':').ok_or_else(|| wrong(""))?;
        let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        if host.is_empty() || host.len() > 253 || !host.chars().all(is_name) {
            return Err(wrong(""));
        }
        let is_number = !port.is_empty() && port.chars().all(|c| c.is_ascii_digit());
        let port = port.parse().ok().filter(|_| is_number).ok_or_else(|| wrong(" (a port is 1 to 65535)"))?;
        Ok(Self { host: host.to_ascii_lowercase(), port })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// Servers, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoints(pub Vec<Endpoint>);

impl Endpoints {
    /// llama.cpp spreads a model over so many devices at most, and a server has one at least.
    const MAX: usize = 16;
}

impl OptionType for Endpoints {
    const PYTHON: &'static str = "str | Sequence[str]";
    fn read(value: &Value, range: Option<Range>) -> Result<Self, String> {
        let texts = one_or_several(value, range, "\"host:port\" or a list of them")?;
        let mut endpoints = Vec::new();
        for text in texts.iter().flat_map(|text| text.split(',')) {
            let endpoint = Endpoint::parse(text.trim())?;
            if endpoint.port == 0 {
                return Err(format!("must name a port, which that of {text:?} does not"));
            }
            if endpoints.contains(&endpoint) {
                return Err(format!("must name each server once, and names {endpoint} twice"));
            }
            endpoints.push(endpoint);
        }
        if endpoints.len() > Self::MAX {
            return Err(format!("must be {} servers at most, not {}", Self::MAX, endpoints.len()));
        }
        Ok(Self(endpoints))
    }
    fn to_python(&self) -> String {
        let listed: Vec<String> = self.0.iter().map(|endpoint| format!("{:?},", endpoint.to_string())).collect();
        format!("({})", listed.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::{Endpoint, Endpoints};
    use crate::options::{OptionType, Value};

    fn read(words: &[&str]) -> Result<Vec<String>, String> {
        let list = words.iter().map(|word| Value::Str((*word).to_owned())).collect();
        Endpoints::read(&Value::List(list), None).map(|list| list.0.iter().map(Endpoint::to_string).collect())
    }

    #[test]
    fn a_host_and_a_port_are_read_and_nothing_else() {
        for good in ["127.0.0.1:50052", "gpu-1.lan:1", "a_b:65535"] {
            assert_eq!(Endpoint::parse(good).map(|endpoint| endpoint.to_string()), Ok(good.to_owned()));
        }
        for bad in [
            "",
            ":",
            "host",
            "host:",
            ":1",
            "host:x",
            "host:-1",
            "host:+1",
            "host:65536",
            "ho st:1",
            "http://host:1",
            "[::1]:1",
            "::1",
            "host:1:2",
            "host:1\0",
            "host:１",
        ] {
            assert!(Endpoint::parse(bad).is_err_and(|why| why.starts_with("must be")), "{bad:?}");
        }
    }

    #[test]
    fn servers_are_listed_or_separated_by_commas_each_of_them_once() {
        assert_eq!(read(&["a:1", "b:2, C:3"]), Ok(vec!["a:1".into(), "b:2".into(), "c:3".into()]));
        assert_eq!(read(&[]), Ok(Vec::new()));
        for bad in [&["a:1", "a:1"][..], &["a:0"], &["a:1,"], &[""]] {
            assert!(read(bad).is_err(), "{bad:?}");
        }
        let many: Vec<String> = (1..=17).map(|port| format!("a:{port}")).collect();
        assert!(read(&many.iter().map(String::as_str).collect::<Vec<_>>()).is_err());
    }
}
