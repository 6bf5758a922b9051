package device

import (
	"testing"

	"github.com/metaroce/metaroce/internal/pkt"
	"github.com/metaroce/metaroce/transport"
	"github.com/metaroce/metaroce/transport/wire/ib"
)

// TestSpecNoDowngrade: silence takes nobody to RoCEv2 who was once heard to speak MetaRoCE.
func TestSpecNoDowngrade(t *testing.T) {
	b := newBench(t, Auto)
	b.mr.answered = true
	q := b.qp()
	q.post(1)
	q.is(b.mr, 1)
	b.mr.answered, b.mr.tries = false, 99 // the peer is gone, its association forgotten
	r := b.qp()
	r.post(1)
	for range 10 {
		b.step()
	}
	//= MR-COEX-023 MR-COEX-022
	r.is(b.mr, 1)
	if b.m.C.Fallbacks != 0 {
		t.Errorf("%d fell back", b.m.C.Fallbacks)
	}
}

// TestSpecNoChange: once something was carried out, neither packets nor HELLOs change the protocol.
func TestSpecNoChange(t *testing.T) {
	b := newBench(t, Auto)
	b.mr.tries = silentTries + 1
	q := b.qp()
	q.post(2)
	q.is(b.ib, 2)
	b.nic.SendDone(q.QP, &transport.SendWR{}, transport.OK)
	b.mr.answered = true
	b.hello()
	b.step()
	//= MR-COEX-025
	q.is(b.ib, 2)

	b = newBench(t, Auto)
	b.mr.answered = true
	q = b.qp()
	q.post(2)
	b.nic.SendDone(q.QP, &transport.SendWR{}, transport.OK)
	p := q.packet(ib.SendOnly, 0xfffff0)
	b.m.HandlePackets(b.now, []pkt.Packet{p})
	b.step()
	//= MR-COEX-025
	q.is(b.mr, 2)
}
