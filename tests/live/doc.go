// Package live drives the built nicemu and programs that nobody here wrote: Debian's perftest, ibverbs-utils, tshark.
// It needs `make` to have run. Every lab has a runtime directory of its own, so that tests see neither each other nor
// a lab of the user; every wait has a bound; every process is one that the test itself started.
package live
