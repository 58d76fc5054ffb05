//! The client of the object store at a URL.
//!
//! The clients of `object_store` repeat failed requests for up to three minutes and abort transfers after 30 seconds by
//! default. Both are off for versions: [`Remote`](super::Remote) repeats, counts and limits requests by itself.

use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreScheme};
use url::Url;

use super::directory::Directory;
use crate::random::unique_random;

/// The folder in a directory with files under construction.
pub(crate) const STAGING: &str = "new";
/// Schemes that [`connect`] accepts, for messages.
const SCHEMES: &str = "use s3://bucket/prefix, gs://bucket/prefix, az://container/prefix or file:///directory";

/// The limit of a request of a client that repeats requests.
const TIMEOUT: Duration = Duration::from_secs(120);

/// What repeats failed requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Retries {
    /// The caller, which also limits their time.
    Caller,
    /// The client.
    Client,
}

/// The variables of the environment.
pub(crate) fn variables() -> impl Iterator<Item = (String, String)> {
    let variable = |(name, value): (OsString, OsString)| name.into_string().ok().zip(value.into_string().ok());
    std::env::vars_os().filter_map(variable)
}

/// The object store at a URL and the path in it. `variables` are the names and values of the environment; each client
/// ignores the variables of other programs. `settings` have such names too, and take precedence. Makes no request. The
/// error is a message.
pub(crate) fn connect(
    url: &Url,
    variables: impl Iterator<Item = (String, String)>,
    settings: &[(String, String)],
    retries: Retries,
) -> Result<(Arc<dyn ObjectStore>, Path), String> {
    if url.scheme() == "file" && url.host().is_some() {
        return Err("file URLs of other hosts are not supported (use file:///directory)".into());
    }
    let unsupported = |_| format!("scheme \"{}\" is not supported ({SCHEMES})", url.scheme());
    let (scheme, path) = ObjectStoreScheme::parse(url).map_err(unsupported)?;
    let has_store = |name: &str| PREFIXES.iter().any(|prefix| name.starts_with(prefix));
    if let Some((name, _)) = settings.iter().find(|(name, _)| !has_store(name)) {
        return Err(format!("unknown setting \"{name}\": names begin with {}", PREFIXES.join(", ")));
    }
    let store: Arc<dyn ObjectStore> = match scheme {
        ObjectStoreScheme::Local => Arc::new(Directory::new(path.clone().join(STAGING), unique_random())),
        ObjectStoreScheme::Memory => return Err("versions in memory end with the program".into()),
        ObjectStoreScheme::AmazonS3 => amazon_s3(url, variables, settings, retries)?,
        ObjectStoreScheme::GoogleCloudStorage => google_cloud_storage(url, variables, settings, retries)?,
        ObjectStoreScheme::MicrosoftAzure => microsoft_azure(url, variables, settings, retries)?,
        _ => return Err(format!("the server is not a known object store ({SCHEMES})")),
    };
    Ok((store, path))
}

/// The beginnings of the names of variables and settings.
const PREFIXES: [&str; 3] = ["AWS_", "GOOGLE_", "AZURE_"];

/// Defines a function that makes a client with a builder of `object_store`.
macro_rules! client {
    ($function:ident, $prefix:expr, $builder:ty) => {
        fn $function(
            url: &Url,
            variables: impl Iterator<Item = (String, String)>,
            settings: &[(String, String)],
            retries: Retries,
        ) -> Result<Arc<dyn ObjectStore>, String> {
            let client = object_store::ClientOptions::new();
            let (retries, client) = match retries {
                // The limit of a connection stays at 5 seconds.
                Retries::Caller => {
                    let none = object_store::RetryConfig { max_retries: 0, ..Default::default() };
                    (none, client.with_timeout_disabled())
                }
                Retries::Client => (object_store::RetryConfig::default(), client.with_timeout(TIMEOUT)),
            };
            let new = <$builder>::new().with_url(url.as_str()).with_retry(retries).with_client_options(client);
            let ours = variables.filter(|(name, _)| name.starts_with($prefix));
            let mut builder = ours.fold(new, |builder, (name, value)| match name.to_ascii_lowercase().parse() {
                Ok(key) => builder.with_config(key, value),
                Err(_) => builder,
            });
            // Those of other stores are for other URLs.
            for (name, value) in settings.iter().filter(|(name, _)| name.starts_with($prefix)) {
                let key = name.to_ascii_lowercase().parse();
                builder = builder.with_config(key.map_err(|_| format!("unknown setting \"{name}\""))?, value);
            }
            match builder.build() {
                Ok(store) => Ok(Arc::new(store)),
                Err(error) => Err(error.to_string()),
            }
        }
    };
}

client!(amazon_s3, PREFIXES[0], object_store::aws::AmazonS3Builder);
client!(google_cloud_storage, PREFIXES[1], object_store::gcp::GoogleCloudStorageBuilder);
client!(microsoft_azure, PREFIXES[2], object_store::azure::MicrosoftAzureBuilder);

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(url: &str) -> String {
        connect(&Url::parse(url).unwrap(), std::iter::empty(), &[], Retries::Caller)
            .map(|(store, _)| store.to_string())
            .unwrap_err()
    }

    #[test]
    fn refusals_say_what_is_missing() {
        for url in ["ftp://bucket/shop", "data:shop"] {
            assert!(refusal(url).contains("is not supported (use s3://"), "{}", refusal(url));
        }
        assert!(refusal("http://example.com/shop").contains("not a known object store"));
        assert!(refusal("file://host/shop").contains("use file:///directory"));
        assert!(refusal("memory:///shop").contains("end with the program"));
        let file = Url::parse("file:///a/b").unwrap();
        assert_eq!(connect(&file, std::iter::empty(), &[], Retries::Caller).unwrap().1.as_ref(), "a/b");
    }

    #[test]
    fn unknown_settings_are_refused() {
        let with = |url: &str, name: &str| {
            let settings = [(name.to_owned(), "us-west-2".to_owned())];
            connect(&Url::parse(url).unwrap(), std::iter::empty(), &settings, Retries::Caller).map(drop)
        };
        assert_eq!(with("s3://bucket/shop", "AWS_REGION"), Ok(()));
        assert_eq!(with("file:///a/b", "AWS_REGION"), Ok(()));
        for name in ["AWS_RETGION", "REGION", "aws_region"] {
            let refusal = with("s3://bucket/shop", name).unwrap_err();
            assert!(refusal.contains(&format!("unknown setting \"{name}\"")), "{refusal}");
        }
    }

    /// Each failed request reaches the server once for each attempt that is counted, and its cause is kept.
    mod clients {
        use std::io::{BufRead, BufReader, Write};
        use std::net::TcpListener;
        use std::sync::atomic::{AtomicU64, Ordering};
        use std::time::Duration;

        use super::*;
        use crate::error::Error;
        use crate::remote::{Remote, RequestOptions};

        /// A server that answers each request with status 503. Returns its address and the number of its requests.
        fn overloaded_server() -> (String, Arc<AtomicU64>) {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let (address, requests) = (listener.local_addr().unwrap(), Arc::new(AtomicU64::new(0)));
            let count = requests.clone();
            std::thread::spawn(move || {
                for stream in listener.incoming() {
                    let mut stream = stream.unwrap();
                    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
                    while lines.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
                    count.fetch_add(1, Ordering::Relaxed);
                    let answer = b"HTTP/1.1 503 Slow Down\r\nContent-Length: 4\r\nConnection: close\r\n\r\nbusy";
                    stream.write_all(answer).unwrap();
                }
            });
            (format!("http://{address}"), requests)
        }

        fn check(url: &str, variables: impl Fn(&str) -> Vec<(&'static str, String)>) {
            let (address, requests) = overloaded_server();
            let variables = variables(&address).into_iter().map(|(name, value)| (name.to_owned(), value));
            let (store, path) = connect(&Url::parse(url).unwrap(), variables, &[], Retries::Caller).unwrap();
            assert_eq!(path.as_ref(), "shop");
            let options = RequestOptions { attempts_max: 3, backoff: Duration::from_millis(1), ..Default::default() };
            let remote = Arc::new(Remote::new(store, options).unwrap());
            let (of_read, of_head) = (remote.clone(), remote.clone());
            let read = remote.run(async move { of_read.read(&Path::from("shop/clock"), None, Ok).await.map(drop) });
            let head = remote.run(async move { of_head.head(&Path::from("shop/clock")).await.map(drop) });
            for result in [read, head] {
                let Err(Error::Request { attempts: 3, source, .. }) = result else { panic!("{result:?}") };
                assert!(source.to_string().contains("503"), "{source}");
            }
            let stats = remote.counters.snapshot();
            assert_eq!((stats.reads, stats.others, stats.retries), (3, 3, 4));
            assert_eq!(requests.load(Ordering::Relaxed), 6);
        }

        #[test]
        fn requests_to_amazon_s3_are_not_repeated_by_its_client() {
            check("s3://bucket/shop", |address| {
                let endpoint = ("AWS_ENDPOINT", address.to_owned());
                let keys = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"].map(|name| (name, "key".to_owned()));
                [endpoint, ("AWS_ALLOW_HTTP", "true".into())].into_iter().chain(keys).collect()
            });
        }

        #[test]
        fn requests_to_google_cloud_storage_are_not_repeated_by_its_client() {
            check("gs://bucket/shop", |address| {
                let variables = ["GOOGLE_SKIP_SIGNATURE", "GOOGLE_ALLOW_HTTP"].map(|name| (name, "true".to_owned()));
                [("GOOGLE_BASE_URL", address.to_owned())].into_iter().chain(variables).collect()
            });
        }

        #[test]
        fn requests_to_azure_blob_storage_are_not_repeated_by_its_client() {
            check("az://container/shop", |address| {
                let variables = ["AZURE_SKIP_SIGNATURE", "AZURE_ALLOW_HTTP"].map(|name| (name, "true".to_owned()));
                let places = [("AZURE_ENDPOINT", address), ("AZURE_STORAGE_ACCOUNT_NAME", "account")];
                places.map(|(name, value)| (name, value.to_owned())).into_iter().chain(variables).collect()
            });
        }
    }
}
