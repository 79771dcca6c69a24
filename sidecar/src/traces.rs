//! Traces of the daemon for an OpenTelemetry collector: decisions with the engine's run and the commit, rounds of fits,
//! writes of the journal, and requests.

#[cfg(feature = "otel")]
pub(crate) use self::otel::Traces;
#[cfg(not(feature = "otel"))]
pub(crate) use self::without::Traces;

#[cfg(feature = "otel")]
mod otel {
    use std::time::Duration;

    use opentelemetry::trace::TracerProvider as _;
    use opentelemetry_otlp::{SpanExporter, WithExportConfig as _};
    use opentelemetry_sdk::{Resource, trace::SdkTracerProvider};
    use tracing::{Level, Subscriber};
    use tracing_subscriber::{
        Layer,
        filter::{LevelFilter, filter_fn},
        registry::LookupSpan,
    };

    /// Maximum time for sending the last spans.
    const LAST: Duration = Duration::from_secs(2);

    /// The sender of traces. A drop sends the remaining ones.
    pub(crate) struct Traces(Option<SdkTracerProvider>);

    impl Traces {
        /// Begins to send the spans of this program's crates to a collector, in batches, from within a runtime. While
        /// the collector is away, at most 2,048 spans wait; others are dropped.
        ///
        /// # Errors
        /// The address is none.
        pub(crate) fn start<S>(otlp: Option<&str>) -> anyhow::Result<(Self, Option<Box<dyn Layer<S> + Send + Sync>>)>
        where
            S: Subscriber + for<'a> LookupSpan<'a> + Send + Sync,
        {
            let Some(address) = otlp else { return Ok((Self(None), None)) };
            let exporter = SpanExporter::builder().with_tonic().with_endpoint(address).build();
            let exporter = exporter.map_err(|error| anyhow::anyhow!("otlp: {address:?}: {error}"))?;
            let resource = Resource::builder().with_service_name("trainmaster").build();
            let provider = SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource).build();
            // The libraries that send traces make spans themselves. Lines of the log aren't sent.
            let ours = filter_fn(|data| {
                data.is_span() && *data.level() <= Level::DEBUG && data.target().starts_with("trainmaster")
            });
            let ours = ours.with_max_level_hint(LevelFilter::DEBUG);
            let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("trainmaster")).with_location(false);
            Ok((Self(Some(provider)), Some(layer.with_filter(ours).boxed())))
        }
    }

    impl Drop for Traces {
        fn drop(&mut self) {
            if let Some(provider) = self.0.take()
                && let Err(error) = provider.shutdown_with_timeout(LAST)
            {
                tracing::warn!(%error, "the last traces weren't sent");
            }
        }
    }
}

#[cfg(not(feature = "otel"))]
mod without {
    use tracing_subscriber::layer::Identity;

    /// A build without traces.
    pub(crate) struct Traces;

    impl Traces {
        /// Does nothing.
        ///
        /// # Errors
        /// Traces are wanted.
        pub(crate) fn start(otlp: Option<&str>) -> anyhow::Result<(Self, Identity)> {
            match otlp {
                None => Ok((Self, Identity::new())),
                Some(_) => anyhow::bail!(
                    "otlp: this build sends no traces; build it with the feature otel: cargo build --release \
                     -p trainmaster --features otel"
                ),
            }
        }
    }
}
