package rocev2_test

import (
	"testing"

	"github.com/metaroce/metaroce/transport"
	"github.com/metaroce/metaroce/transport/transporttest"
)

// TestWorldMemory: this world's memory keeps to transport.Host as the other engine's does: every chain that failed is
// remembered, and a key that may not be written to is found out by a check.
func TestWorldMemory(t *testing.T) {
	w := newWorld(config{})
	n := w.nodes[0]
	n.Keys[8] = transporttest.Key{Hi: 100, Read: true}
	bad := func(chain uint32) transport.MemOp {
		return transport.MemOp{Kind: transport.MemRead, RKey: 99, Buf: make([]byte, 1), Chain: chain}
	}
	good := func(chain uint32) transport.MemOp {
		return transport.MemOp{Kind: transport.MemRead, RKey: 7, Buf: make([]byte, 1), Chain: chain}
	}
	ops := []transport.MemOp{bad(1), bad(2), good(1), good(2), good(3), bad(0), good(0),
		{Kind: transport.MemCheckWrite, RKey: 8, Swap: 8}, {Kind: transport.MemCheckRead, RKey: 8, Swap: 8}}
	host{n}.DMA(ops)
	for i, want := range []transport.MemErr{transport.MemAccess, transport.MemAccess, transport.MemSkipped, transport.MemSkipped, transport.MemOK,
		transport.MemAccess, transport.MemOK, transport.MemAccess, transport.MemOK} {
		if ops[i].Err != want {
			t.Errorf("operation %d: %v, want %v", i, ops[i].Err, want)
		}
	}
}
