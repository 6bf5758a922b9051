package transporttest

import (
	"testing"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/transport"
	"github.com/metaroce/metaroce/transport/wire"
)

// TestLongRNRWait: the wait for a receive may be longer than timeout × (retry_cnt + 1).
func TestLongRNRWait(t *testing.T) {
	for _, min := range []uint8{0, 31, 26} {
		w := New(Config{Seed: 1, Planes: 2, Link: usual()})
		a, b := w.Nodes[0], w.Nodes[1]
		o := QPOptions{Timeout: 8, Retry: 1, MinRNR: min} // 1 ms
		if min == 0 {
			o.MinRNR = 255
		}
		p, q := w.Connect(a, b, o)
		p.Send(WR{Op: transport.OpSend, N: 10})
		w.Run(10 * mono.Millisecond)
		q.Recv(1, 0, 100)
		if !w.RunUntil(2*second, func() bool { return len(p.Sends) == 1 }) || p.Sends[0].Status != transport.OK {
			t.Errorf("code %d: %v %s", min, p.Sends, p.Dump())
		}
	}
}

// TestLongLimitWait: the same for a QP that the receive limit stops.
func TestLongLimitWait(t *testing.T) {
	w := New(Config{Seed: 1, Planes: 2, Link: usual()})
	a, b := w.Nodes[0], w.Nodes[1]
	p, q := w.Connect(a, b, QPOptions{Timeout: 6, Retry: 255, MinRNR: 20}) // 262 µs; the wait is 10 ms
	q.Recv(1, 0, 100)
	for range 3 {
		p.Send(WR{Op: transport.OpSend, N: 10})
	}
	w.Run(60 * mono.Millisecond)
	q.Recv(1, 0, 100)
	q.Recv(1, 0, 100)
	if !w.RunUntil(2*second, func() bool { return len(p.Sends) == 3 }) || p.Sends[2].Status != transport.OK {
		t.Errorf("%v %s", p.Sends, p.Dump())
	}
}

// TestLimitLost: the only word of many new receives is lost. The sends behind it do not go one by one.
func TestLimitLost(t *testing.T) {
	s := newScript(t, Config{Seed: 1, Planes: 2})
	p, q := s.w.Connect(s.node(0), s.node(1), QPOptions{SQ: 256, MTU: 256})
	q.Recv(1, 0, 100)
	p.Send(WR{Op: transport.OpSend, N: 10})
	s.done(p, 1)
	s.run(mono.Millisecond)
	s.fate = func(x *sent) mono.Duration {
		if len(x.Ack.QPs) > 0 {
			return lost
		}
		return 0
	}
	for range 100 {
		q.Recv(1, 0, 3000)
	}
	s.run(mono.Millisecond)
	s.fate = nil
	for range 100 {
		p.Send(WR{Op: transport.OpSend, N: 3000})
	}
	t0 := s.w.Now
	s.done(p, 101)
	if took := s.w.Now.Sub(t0); took > 5*mono.Millisecond {
		t.Errorf("took %v", took)
	}
}

// TestReadIsAskedFor: a READ whose answer is gone is asked for after one timeout of the QP, not later.
func TestReadIsAskedFor(t *testing.T) {
	s := newScript(t, Config{Seed: 1, Planes: 2})
	p, q := s.w.Connect(s.node(0), s.node(1), QPOptions{Timeout: 12, Retry: 7}) // 16.8 ms
	s.node(1).Keys[7] = Key{0, 4 << 20, true, true, true, false}
	p.Send(WR{Op: transport.OpWrite, N: 10, Key: 7})
	s.done(p, 1)
	s.fate = func(x *sent) mono.Duration {
		if x.Op == wire.OpReadResp {
			return lost
		}
		return 0
	}
	t0 := s.w.Now
	p.Send(WR{Op: transport.OpRead, N: 10, Key: 7})
	s.run(mono.Millisecond)
	q.Destroy(s.w.Now)
	if !s.until(second, func() bool { return len(p.Sends) == 2 }) {
		t.Fatalf("stuck %s", p.Dump())
	}
	if took := s.w.Now.Sub(t0); p.Sends[1].Status != transport.RetryExcErr || took > 40*mono.Millisecond {
		t.Errorf("%+v after %v", p.Sends[1], took)
	}
}

// TestReadWithoutDepth: a READ on a QP with max_rd_atomic 0 can never go.
func TestReadWithoutDepth(t *testing.T) {
	w := New(Config{Seed: 1, Planes: 2, Link: usual()})
	p, _ := w.Connect(w.Nodes[0], w.Nodes[1], QPOptions{Rd: -1})
	p.Send(WR{Op: transport.OpRead, N: 10, Key: 7})
	//= MR-VRB-009
	if !w.RunUntil(second, func() bool { return len(p.Sends) == 1 }) || p.Sends[0].Status != transport.LocQPOpErr {
		t.Errorf("%v %s", p.Sends, p.Dump())
	}
}

// TestParkedBehind: a packet that may go again soon does not wait behind many that may not.
func TestParkedBehind(t *testing.T) {
	f := newForge(t, Config{Seed: 1})
	q := f.qp(QPOptions{SQ: 256})
	for i := range uint64(200) {
		q.Send(WR{ID: i, Op: transport.OpSend, N: 10})
	}
	xs := data(f.collect())
	var a acked
	for _, x := range xs[1:] {
		r := refuses(x, q, wire.RefuseRNR)
		r.Timer, r.InOrder = 31, false
		a.Refusals = append(a.Refusals, r)
	}
	a.Refusals = append(a.Refusals, refuses(xs[0], q, wire.RefuseLater))
	f.deliver(f.ack(a))
	again := data(f.wait(2 * mono.Millisecond))
	if len(again) == 0 || again[0].PSN != 0 {
		t.Errorf("%v", again)
	}
	f.deliver(f.acks(again...))
	if again = data(f.wait(600 * mono.Millisecond)); len(again) < 199 {
		t.Errorf("only %d of 199 come again", len(again))
	}
}

// TestResponseAckInTime: a response that nobody wants is acknowledged in time although no ack is asked for.
func TestResponseAckInTime(t *testing.T) {
	f := newForge(t, Config{Seed: 1})
	p := f.packet(wire.Header{Op: wire.OpReadResp, DestQP: 0x4711, PSN: 5}, bytesOf(1, 100))
	xs := f.deliver(p)
	xs = append(xs, f.wait(5*mono.Millisecond)...)
	f.want("response to nobody", xs, p, "ack")
}
