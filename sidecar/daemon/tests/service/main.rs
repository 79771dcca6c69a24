//! Tests of the daemon from outside: all services of its port, with a scripted manager and scripted training programs.

mod abuse;
mod feed;
mod fifth;
mod greed;
mod journal;
mod life;
mod manager;
mod net;
mod roles;
mod support;
