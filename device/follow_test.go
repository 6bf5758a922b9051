package device_test

import (
	"testing"

	"github.com/metaroce/metaroce/device/hostq"
	"github.com/metaroce/metaroce/internal/pkt"
	"github.com/metaroce/metaroce/internal/serial"
	"github.com/metaroce/metaroce/transport"
	"github.com/metaroce/metaroce/transport/wire/ib"
)

// TestForgedFollow: a target that only serves WRITEs, READs or atomics takes no receive and completes nothing, and yet its
// connection is under way: a RoCEv2 packet in the peer's name does not move it.
func TestForgedFollow(t *testing.T) {
	for name, op := range map[string]uint8{"nothing": 0xff, "WRITE": hostq.WRWrite, "READ": hostq.WRRead, "atomic": hostq.WRFetchAdd} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, false)
			a, b, qa, qb := w.pair(t)
			w.step(1000)
			if op != 0xff {
				qa.SQ.PutSend(hostq.SQE{WRID: 1, Opcode: op, RKey: b.mr.Key(), RemoteAddr: ramBase, Flags: hostq.SendSignaled}, nil, a.sge(0, 8))
				qa.SQ.Ring()
				w.want(a, 1, transport.OK)
			}
			h := ib.Header{Op: ib.WriteOnly, PKey: ib.PKeyDefault, DestQP: qb.QPN(), PSN: serial.Trunc(7)}
			p := pkt.Packet{Data: make([]byte, h.Size()+ib.ICRCLen), Src: a.nic.Addrs()[0], Dst: b.nic.Addrs()[0], SrcPort: 0xc000}
			h.Put(p.Data)
			var s ib.Summer
			s.Seal(&p)
			w.ports[0].TxBurst(w.now, []pkt.Packet{p})
			w.step(100)
			//= MR-COEX-024 MR-COEX-025
			if moved := b.nic.RoCEv2().QP(qb.QPN()) != nil; moved != (op == 0xff) {
				t.Fatalf("moved: %v", moved)
			}
			if op != 0xff {
				qa.SQ.PutSend(hostq.SQE{WRID: 2, Opcode: op, RKey: b.mr.Key(), RemoteAddr: ramBase, Flags: hostq.SendSignaled}, nil, a.sge(0, 8))
				qa.SQ.Ring()
				w.want(a, 2, transport.OK)
			}
		})
	}
}
