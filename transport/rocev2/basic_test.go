package rocev2_test

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/transport"
	"github.com/metaroce/metaroce/transport/transporttest"
)

// TestOps: every opcode once, of lengths around the MTU.
func TestOps(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		for _, n := range []uint32{0, 1, 3, 64, 65, 1023, 1024, 1025, 4096, 10_000} {
			w := newWorld(config{link: usual(), v6: v6})
			a, b := w.nodes[0], w.nodes[1]
			p, q := w.connect(a, b, options{mtu: 1024, psn: 0xFFFFFE})
			for i := range a.Mem {
				a.Mem[i] = byte(i * 7 >> 3)
			}
			b.Keys[9] = transporttest.Key{Lo: 0, Hi: 1, Write: true, Read: true, Atomic: true}
			for i := range 4 {
				q.recv(uint64(i), 0x100000+uint64(i)*0x10000, 0x10000)
			}
			p.send(wr{id: 1, op: transport.OpSend, local: 5, n: n, flags: transport.FlagSolicited})
			p.send(wr{id: 2, op: transport.OpSendImm, local: 6, n: n, imm: 0x01020304})
			p.send(wr{id: 3, op: transport.OpWrite, local: 7, n: n, remote: 0x200000, key: 7})
			p.send(wr{id: 4, op: transport.OpWriteImm, local: 8, n: n, remote: 0x210000, key: 7, imm: 42})
			p.send(wr{id: 5, op: transport.OpSendInv, local: 9, n: n, imm: 9})
			p.send(wr{id: 6, op: transport.OpRead, local: 0x300000, n: n, remote: 0x200000, key: 7, flags: transport.FlagFence})
			p.send(wr{id: 7, op: transport.OpFetchAdd, local: 0x380000, n: 8, remote: 0x400 << 4, key: 7, compare: 5})
			p.send(wr{id: 8, op: transport.OpCmpSwap, local: 0x380008, n: 8, remote: 0x400 << 4, key: 7, compare: 6, swap: 99})
			binary.LittleEndian.PutUint64(b.Mem[0x4000:], 1)
			w.mustRun(t, 10*mono.Millisecond, func() bool { return len(p.sends) == 8 })
			for i, c := range p.sends {
				if c.status != transport.OK || c.id != uint64(i+1) {
					t.Fatalf("length %d: completion %d: %+v", n, i, c)
				}
			}
			if len(q.received) != 4 {
				t.Fatalf("%d received", len(q.received))
			}
			want := []completion{{id: 0, op: transport.OpSend, n: n, se: true}, {id: 1, op: transport.OpSendImm, n: n, imm: 0x01020304},
				{id: 2, op: transport.OpWriteImm, n: n, imm: 42}, {id: 3, op: transport.OpSendInv, n: n, imm: 9}}
			for i, c := range q.received {
				c.at = 0
				want[i].src = p.Number()
				if c != want[i] {
					t.Errorf("received %+v, want %+v", c, want[i])
				}
			}
			same := func(what string, at, from uint64, m []byte) {
				if !bytes.Equal(m[at:at+uint64(n)], a.Mem[from:from+uint64(n)]) {
					t.Errorf("length %d: %s differs", n, what)
				}
				if m[at+uint64(n)] != 0 && at >= 0x100000 && &m[0] != &a.Mem[0] {
					t.Errorf("length %d: %s wrote beyond its end", n, what)
				}
			}
			same("SEND", 0x100000, 5, b.Mem)
			same("SEND_IMM", 0x110000, 6, b.Mem)
			same("SEND_INV", 0x130000, 9, b.Mem)
			same("WRITE", 0x200000, 7, b.Mem)
			same("WRITE_IMM", 0x210000, 8, b.Mem)
			same("READ", 0x300000, 7, a.Mem)
			if _, there := b.Keys[9]; there {
				t.Error("key is still valid")
			}
			u := func(m []byte, at int) uint64 { return binary.LittleEndian.Uint64(m[at:]) }
			if u(a.Mem, 0x380000) != 1 || u(a.Mem, 0x380008) != 6 || u(b.Mem, 0x4000) != 99 {
				t.Errorf("atomics: %d %d %d", u(a.Mem, 0x380000), u(a.Mem, 0x380008), u(b.Mem, 0x4000))
			}
			if a.e.C.Retransmits != 0 || a.e.InFlight() != 0 {
				t.Errorf("%d retransmits", a.e.C.Retransmits)
			}
		}
	}
}
