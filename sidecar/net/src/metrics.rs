//! The port's metrics, and how metrics are registered.

use prometheus::{
    Gauge, GaugeVec, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
    core::Collector,
};

/// The port's metrics. Clones share the counters.
#[derive(Clone, Debug)]
pub struct NetMetrics {
    pub(crate) connections: IntGauge,
    pub(crate) failed: IntCounterVec,
    pub(crate) refused: IntCounterVec,
    pub(crate) panics: IntCounter,
    pub(crate) certificate_ends: IntGauge,
}

impl NetMetrics {
    /// Registers the metrics.
    ///
    /// # Errors
    /// The registry already has metrics of these names.
    pub fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let add = Adder(registry);
        Ok(Self {
            connections: add.gauge("connections", "Open connections")?,
            failed: add.counters(
                "connections_failed_total",
                "Connections that failed, by stage. `unproven`: closed without an accepted call",
                "stage",
                &["accept", "tls", "http", "unproven"],
            )?,
            refused: add.counters(
                "calls_refused_total",
                "Calls refused before their body was read, by reason. `page`: caused by a web page, for another \
                 host name, or not gRPC; `token`: missing or unknown",
                "reason",
                &["page", "token", "role", "share", "other"],
            )?,
            panics: add.counter("panics_total", "Calls that panicked and were answered as INTERNAL")?,
            certificate_ends: add
                .gauge("certificate_ends_seconds", "Expiry of the port's certificate as a Unix time; 0 without TLS")?,
        })
    }

    /// Expiry of the port's certificate, in Unix seconds. `None` without TLS.
    pub fn certificate_ends(&self) -> Option<i64> {
        Some(self.certificate_ends.get()).filter(|&ends| ends != 0)
    }
}

/// Makes and registers metrics with the common prefix.
#[derive(Clone, Copy, Debug)]
pub struct Adder<'a>(pub &'a Registry);

impl Adder<'_> {
    /// Registers a metric with its full name.
    ///
    /// # Errors
    /// The registry contains a metric with this name.
    fn register<C: Collector + Clone + 'static>(&self, metric: C) -> Result<C, prometheus::Error> {
        self.0.register(Box::new(metric.clone()))?;
        Ok(metric)
    }

    /// A counter `trainmaster_{name}`.
    ///
    /// # Errors
    /// The registry contains a metric with this name.
    pub fn counter(&self, name: &str, help: &str) -> Result<IntCounter, prometheus::Error> {
        self.register(IntCounter::new(format!("trainmaster_{name}"), help)?)
    }

    /// A counter for each value of a label. All are there from the start, so that rates can be computed from the first
    /// event on.
    ///
    /// # Errors
    /// The registry contains a metric with this name.
    pub fn counters(
        &self,
        name: &str,
        help: &str,
        label: &str,
        values: &[&str],
    ) -> Result<IntCounterVec, prometheus::Error> {
        let counters = IntCounterVec::new(Opts::new(format!("trainmaster_{name}"), help), &[label])?;
        values.iter().for_each(|value| _ = counters.with_label_values(&[*value]));
        self.register(counters)
    }

    /// A gauge.
    ///
    /// # Errors
    /// The registry contains a metric with this name.
    pub fn gauge(&self, name: &str, help: &str) -> Result<IntGauge, prometheus::Error> {
        self.register(IntGauge::new(format!("trainmaster_{name}"), help)?)
    }

    /// A gauge for each value of a label. A value is there once it was set.
    ///
    /// # Errors
    /// The registry contains a metric with this name.
    pub fn gauges(&self, name: &str, help: &str, label: &str) -> Result<IntGaugeVec, prometheus::Error> {
        self.register(IntGaugeVec::new(Opts::new(format!("trainmaster_{name}"), help), &[label])?)
    }

    /// A gauge that is always 1, for what its labels say.
    ///
    /// # Errors
    /// The registry contains a metric with this name.
    pub fn info(&self, name: &str, help: &str, labels: &[(&str, &str)]) -> Result<(), prometheus::Error> {
        let (names, values): (Vec<&str>, Vec<&str>) = labels.iter().copied().unzip();
        let gauges = IntGaugeVec::new(Opts::new(format!("trainmaster_{name}"), help), &names)?;
        gauges.with_label_values(&values).set(1);
        self.register(gauges).map(|_| ())
    }

    /// A gauge with fractions.
    ///
    /// # Errors
    /// The registry contains a metric with this name.
    pub fn real_gauge(&self, name: &str, help: &str) -> Result<Gauge, prometheus::Error> {
        self.register(Gauge::new(format!("trainmaster_{name}"), help)?)
    }

    /// A gauge with fractions for each value of a label. A value is there once it was set.
    ///
    /// # Errors
    /// The registry contains a metric with this name.
    pub fn real_gauges(&self, name: &str, help: &str, label: &str) -> Result<GaugeVec, prometheus::Error> {
        self.register(GaugeVec::new(Opts::new(format!("trainmaster_{name}"), help), &[label])?)
    }

    /// A histogram with these upper bounds.
    ///
    /// # Errors
    /// The registry contains a metric with this name.
    pub fn histogram(&self, name: &str, help: &str, buckets: &[f64]) -> Result<Histogram, prometheus::Error> {
        let options = HistogramOpts::new(format!("trainmaster_{name}"), help).buckets(buckets.to_vec());
        self.register(Histogram::with_opts(options)?)
    }
}
