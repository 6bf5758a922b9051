package device_test

import (
	"testing"

	"github.com/metaroce/metaroce/device"
	"github.com/metaroce/metaroce/device/hostq"
	"github.com/metaroce/metaroce/transport"
)

// TestInvalidateRegion: the key of a region cannot be invalidated from afar (only that of a memory window could). The SEND
// fails as with a bad key, the receiver is not told that the key is dead, and it is not.
func TestInvalidateRegion(t *testing.T) {
	for _, policy := range []device.Policy{device.OnlyMetaRoCE, device.OnlyRoCEv2} {
		for name, stranger := range map[string]bool{"a region's key": false, "nobody's key": true} {
			t.Run(policy.String()+"/"+name, func(t *testing.T) {
				w := newWorldOf(t, false, policy)
				a, b, qa, qb := w.pair(t)
				key := b.mr.Key()
				if stranger {
					key ^= 0x5500
				}
				receive(qb, 1, b.sge(0, 100))
				post(qa, hostq.SQE{WRID: 2, Opcode: hostq.WRSendInv, Imm: key}, nil, a.sge(0, 10))
				w.want(a, 2, transport.RemAccessErr)
				//= MR-MSG-054
				if e := w.want(b, 1, transport.WRFlushErr); e.WCFlags != 0 {
					t.Errorf("flags %x", e.WCFlags)
				}
				if a.state(qa) != device.Err || b.state(qb) != device.Err {
					t.Error(a.state(qa), b.state(qb))
				}
				qa, qb = a.qp(), b.qp()
				a.up(qa, b.nic.Addrs()[0], qb.QPN())
				b.up(qb, a.nic.Addrs()[0], qa.QPN())
				post(qa, hostq.SQE{WRID: 3, Opcode: hostq.WRWrite, Flags: hostq.SendSignaled, RKey: b.mr.Key(), RemoteAddr: ramBase}, nil, a.sge(0, 10))
				w.want(a, 3, transport.OK)
			})
		}
	}
}
