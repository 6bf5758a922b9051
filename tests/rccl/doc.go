// Package rccl runs collectives through the net plugin of RCCL and NCCL on labs: loss, planes that go away, ranks and daemons
// that are killed, thousands of connections. It needs `make` and the build tag live.
package rccl
