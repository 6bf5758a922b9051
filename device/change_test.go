package device_test

import (
	"errors"
	"net/netip"
	"syscall"
	"testing"

	"github.com/metaroce/metaroce/device"
	"github.com/metaroce/metaroce/device/devicetest"
	"github.com/metaroce/metaroce/device/hostq"
	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/pkt"
	"github.com/metaroce/metaroce/transport"
)

// spy counts the packets of a port by their destination.
type spy struct {
	*devicetest.Wire
	to map[netip.Addr]int
}

func (s *spy) TxBurst(now mono.Time, ps []pkt.Packet) int {
	n := s.Wire.TxBurst(now, ps)
	for i := range ps[:n] {
		s.to[ps[i].Dst]++
	}
	return n
}

const (
	sqdAll   = 1<<7 | 1<<9 | 1<<10 | 1<<11 | 1<<13 | 1<<15 | 1<<17
	stateBit = 1
)

// TestSpecChangeInSQD: what a program changes while its QP is drained holds afterwards, with either engine: here both ends
// go to the other address of their peers, and the old ones are heard of no more.
func TestSpecChangeInSQD(t *testing.T) {
	for _, policy := range []device.Policy{device.OnlyMetaRoCE, device.OnlyRoCEv2, device.Auto} {
		x, y := devicetest.NewWire(4300)
		w, spies := &world{now: 1e9}, [2]*spy{}
		addr := func(nic, i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, byte(i), byte(nic + 1)}) }
		for i, port := range []*devicetest.Wire{x, y} {
			spies[i] = &spy{port, map[netip.Addr]int{}}
			n, err := device.New(device.Config{Name: string(rune('a'+i)) + "/mr0", Dev: "mr0", Seed: uint64(i + 1), Instance: 1,
				Ports: []device.Port{spies[i]}, Transport: policy, Addrs: []netip.Addr{addr(i, 0), addr(i, 1)}})
			if err != nil {
				t.Fatal(err)
			}
			w.nics = append(w.nics, n)
		}
		w.step(1)
		a, b, qa, qb := w.pair(t)
		write := func(id uint64, s transport.Status) {
			t.Helper()
			qa.SQ.PutSend(hostq.SQE{WRID: id, Flags: hostq.SendSignaled, Opcode: hostq.WRWrite, RKey: b.mr.Key(), RemoteAddr: ramBase}, nil, a.sge(0, 50_000))
			qa.SQ.Ring()
			w.want(a, id, s)
		}
		write(1, transport.OK)
		ends := []struct {
			p *prog
			q *qpair
		}{{a, qa}, {b, qb}}
		modify := func(i int, s device.State, mask uint32) error {
			m := attr(ends[i].q.Handle(), s, addr(1-i, 1), ends[1-i].q.QPN())
			m.AH.SGIDIndex, m.Timeout, m.RetryCnt, m.MaxRdAtomic, m.MaxDestRdAtomic, m.Mask = 1, 12, 1, 1, 1, mask
			return ends[i].p.ctx.ModifyQP(w.now, m)
		}
		qa.SQ.PutSend(hostq.SQE{WRID: 2, Flags: hostq.SendSignaled, Opcode: hostq.WRWrite, RKey: b.mr.Key(), RemoteAddr: ramBase}, nil, a.sge(0, 50_000))
		qa.SQ.Ring()
		w.nics[0].Step(w.now)
		if err := modify(0, device.SQD, stateBit); err != nil {
			t.Fatal(err)
		}
		//= MR-QP-012
		if err := modify(0, device.SQD, stateBit|sqdAll); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%v: a new address while a request is under way: %v", policy, err)
		}
		w.want(a, 2, transport.OK)
		w.step(200) // the last acknowledgements
		for i := range ends {
			if i == 1 {
				if err := modify(i, device.SQD, stateBit); err != nil {
					t.Fatal(err)
				}
			}
			if err := modify(i, device.SQD, stateBit|sqdAll); err != nil {
				t.Fatalf("%v: %v", policy, err)
			}
			if err := modify(i, device.RTS, stateBit); err != nil {
				t.Fatal(err)
			}
		}
		clear(spies[0].to)
		write(3, transport.OK)
		qa.SQ.PutSend(hostq.SQE{WRID: 4, Flags: hostq.SendSignaled, Opcode: hostq.WRRead, RKey: b.mr.Key(), RemoteAddr: ramBase}, nil, a.sge(0, 50_000))
		qa.SQ.PutSend(hostq.SQE{WRID: 5, Flags: hostq.SendSignaled, Opcode: hostq.WRRead, RKey: b.mr.Key(), RemoteAddr: ramBase}, nil, a.sge(0, 50_000))
		qa.SQ.Ring()
		w.want(a, 4, transport.OK)
		w.want(a, 5, transport.OK)
		//= MR-QP-012
		if old, now := spies[0].to[addr(1, 0)], spies[0].to[addr(1, 1)]; old > 2 || now < 13 {
			t.Errorf("%v: %d packets to the old address, %d to the new one", policy, old, now)
		}
		began := w.now
		x.Down, y.Down = true, true
		x.Refuse, y.Refuse = true, true
		write(6, transport.RetryExcErr)
		// twice 16.8 ms instead of eight times 67 ms
		if d := w.now.Sub(began); d > 300*mono.Millisecond {
			t.Errorf("%v: it takes %v to give up", policy, d)
		}
	}
}

// TestShiftedKeys: the NIC knows while a program has keys that call bytes by other addresses.
func TestShiftedKeys(t *testing.T) {
	w := newWorld(t, true)
	a, b, qa, qb := w.pair(t)
	want := func(is bool) {
		t.Helper()
		if got := b.nic.ShiftedKeys(qb.QP); got != is || a.nic.ShiftedKeys(qa.QP) {
			t.Errorf("shifted keys: %v, want %v", got, is)
		}
	}
	want(false)
	m := must(b.ctx.RegMR(&hostq.RegMR{PD: b.pd, Addr: ramBase, IOVA: 0, Length: 64, Access: 1}))(t)
	want(true)
	must(b.ctx.ReregMR(&hostq.RegMR{Handle: m.Handle(), PD: b.pd, Rereg: 1, Addr: ramBase, IOVA: ramBase, Length: 64}))(t)
	want(false)
	must(b.ctx.ReregMR(&hostq.RegMR{Handle: m.Handle(), PD: b.pd, Rereg: 1, Addr: ramBase, IOVA: 8, Length: 64}))(t)
	want(true)
	if err := b.ctx.DeregMR(m.Handle()); err != nil {
		t.Fatal(err)
	}
	want(false)
}
