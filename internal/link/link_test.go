package link

import (
	"math"
	"strings"
	"testing"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/rng"
)

func set(t *testing.T, l *Link, now mono.Time, s Spec) {
	t.Helper()
	if err := l.Set(now, s); err != nil {
		t.Fatal(err)
	}
}

// stream sends n packets, one every gap, and returns per packet its arrival times.
func stream(l *Link, n int, bytes int, gap mono.Duration) (arrivals map[Handle][]mono.Time, order []Handle) {
	arrivals = map[Handle][]mono.Time{}
	take := func(now mono.Time) {
		for o, ok := l.Next(now); ok; o, ok = l.Next(now) {
			arrivals[o.Handle] = append(arrivals[o.Handle], now)
			order = append(order, o.Handle)
		}
	}
	now := mono.Time(1000)
	for i := range n {
		for w := l.NextWake(); w <= now; w = l.NextWake() {
			take(w)
		}
		l.Send(now, Handle(i), bytes, true)
		now = now.Add(gap)
	}
	for w := l.NextWake(); w != mono.Never; w = l.NextWake() {
		take(w)
	}
	return arrivals, order
}

func TestZeroPassesAtOnce(t *testing.T) {
	l := New(1, "l", 4)
	if !l.Spec().Zero() || !(Spec{Burst: 8, Queue: 1}).Zero() || (Spec{Delay: 1}).Zero() {
		t.Error("Zero")
	}
	if v := l.Send(5, 9, 100, true); v != Queued || l.NextWake() != 5 {
		t.Fatal(v, l.NextWake())
	}
	if o, ok := l.Next(5); !ok || o != (Out{Handle: 9, Last: true}) {
		t.Fatal(o, ok)
	}
	if _, ok := l.Next(5); ok || l.NextWake() != mono.Never {
		t.Fatal("not empty")
	}
}

func TestLossRatio(t *testing.T) {
	for _, c := range []struct{ loss, burst float64 }{{0.001, 0}, {0.01, 1}, {0.1, 0}, {0.5, 0}, {1, 0}, {0.01, 8}, {0.1, 8}, {0.05, 3}, {0.5, 8}} {
		l := New(7, "l", 16)
		set(t, l, 0, Spec{Loss: c.loss, Burst: c.burst})
		const n = 400_000
		lost, runs, in := 0, 0, false
		for i := range n {
			v := l.Send(mono.Time(i), 0, 1000, false)
			if v == Lost {
				lost++
				if !in {
					runs++
				}
			}
			in = v == Lost
			for _, ok := l.Next(mono.Time(i)); ok; _, ok = l.Next(mono.Time(i)) {
			}
		}
		got := float64(lost) / n
		// Losses in a burst are one event: the spread grows with its length.
		sigma := math.Sqrt(c.loss * (1 - c.loss) * 2 * max(c.burst, 1) / n)
		if math.Abs(got-c.loss) > 5*sigma {
			t.Errorf("loss %v burst %v: lost %v", c.loss, c.burst, got)
		}
		if c.burst > 1 {
			if mean := float64(lost) / float64(runs); math.Abs(mean-c.burst) > 0.1*c.burst {
				t.Errorf("loss %v burst %v: mean run %v", c.loss, c.burst, mean)
			}
		}
		if s := l.Stats(); s.Lost != uint64(lost) || s.Delivered != uint64(n-lost) {
			t.Errorf("stats %+v, lost %d", s, lost)
		}
	}
}

func TestDelayKeepsOrder(t *testing.T) {
	for _, s := range []Spec{
		{Delay: 20 * mono.Microsecond},
		{Delay: 20 * mono.Microsecond, Jitter: 15 * mono.Microsecond},
		{RateBps: 20e9, Delay: 3 * mono.Microsecond, Jitter: mono.Microsecond},
	} {
		l := New(1, "l", 1024)
		set(t, l, 0, s)
		at, order := stream(l, 5000, 1000, 500)
		if len(order) != 5000 {
			t.Fatalf("%+v: %d arrived", s, len(order))
		}
		lo, hi := mono.Duration(math.MaxInt64), mono.Duration(0)
		for i, h := range order {
			if h != Handle(i) {
				t.Fatalf("%+v: packet %d arrived as number %d", s, h, i)
			}
			d := at[h][0].Sub(mono.Time(1000 + 500*i))
			lo, hi = min(lo, d), max(hi, d)
		}
		if lo < s.Delay || s.RateBps == 0 && hi > s.Delay+s.Jitter || s.Jitter > 0 && hi-lo < s.Jitter/2 {
			t.Errorf("%+v: delays %v … %v", s, lo, hi)
		}
	}
}

func TestRateIsExact(t *testing.T) {
	for _, rate := range []uint64{1e6, 10e9, 100e9, 799_999_999_999} {
		l := New(1, "l", 64)
		set(t, l, 0, Spec{RateBps: rate})
		const n, bytes = 100_000, 1037
		var last mono.Time
		for i := 0; i < n; {
			for i < n && l.Room() > 0 { // keep it busy
				l.Send(last, Handle(i), bytes, false)
				i++
			}
			w := l.NextWake()
			l.Next(w)
			last = w
		}
		for w := l.NextWake(); w != mono.Never; w = l.NextWake() {
			l.Next(w)
			last = w
		}
		want := float64(n) * bytes * 8 / float64(rate) * 1e9
		if math.Abs(float64(last)-want) > 2 {
			t.Errorf("rate %d: %v ns instead of %v", rate, last, want)
		}
	}
}

func TestQueueAndMarks(t *testing.T) {
	l := New(1, "l", 1024)
	set(t, l, 0, Spec{RateBps: 8e9, Queue: 100_000, ECNMin: 20_000, ECNMax: 60_000}) // 1 byte a ns
	marks := make([]bool, 200)
	full := 0
	for i := range 200 {
		if l.Send(0, Handle(i), 1000, true) == QueueFull {
			full++
		}
	}
	if full != 100 || l.Backlog(0) != 100_000 || l.Backlog(99_000) != 1000 || l.Backlog(200_000) != 0 {
		t.Error("queue", full, l.Backlog(0), l.Backlog(99_000))
	}
	n, middle := 0, 0
	for o, ok := l.Next(200_000); ok; o, ok = l.Next(200_000) {
		marks[o.Handle] = o.CE
		n++
		switch ahead := int(o.Handle) * 1000; {
		case ahead <= 20_000 && o.CE, ahead >= 60_000 && !o.CE:
			t.Errorf("packet behind %d bytes: CE %v", ahead, o.CE)
		case ahead > 20_000 && ahead < 60_000 && o.CE:
			middle++
		}
	}
	if n != 100 || middle < 10 || middle > 30 {
		t.Error("delivered", n, "marked between", middle)
	}
	l.Send(300_000, 1, 1000, true)
	for i := range 80 {
		l.Send(300_000, Handle(i), 1000, false)
	}
	for o, ok := l.Next(500_000); ok; o, ok = l.Next(500_000) {
		if o.CE {
			t.Fatal("marked without ECT")
		}
	}
}

func TestRateChange(t *testing.T) {
	l := New(1, "l", 64)
	set(t, l, 0, Spec{RateBps: 8e9, Queue: 50_000})
	for i := range 40 {
		l.Send(0, Handle(i), 1000, false)
	}
	set(t, l, 10_000, Spec{RateBps: 4e9, Queue: 50_000}) // 30,000 bytes left, now 2 ns each
	if b := l.Backlog(10_000); b != 30_000 {
		t.Error("backlog", b)
	}
	l.Send(10_000, 99, 1000, false)
	var at mono.Time
	for w := l.NextWake(); w != mono.Never; w = l.NextWake() {
		at = w
		l.Next(w)
	}
	if at != 10_000+31_000*2 {
		t.Error("last at", at)
	}
}

func TestReorderDuplicateCorrupt(t *testing.T) {
	l := New(3, "l", 1024)
	set(t, l, 0, Spec{Reorder: 0.1, ReorderBy: 10 * mono.Microsecond, Duplicate: 0.05, Corrupt: 0.02})
	const n = 50_000
	at, order := stream(l, n, 1000, 500)
	if len(at) != n {
		t.Fatal("arrived", len(at))
	}
	dup, late := 0, 0
	for i := range n {
		if len(at[Handle(i)]) == 2 {
			dup++
		}
	}
	high := Handle(0)
	for _, h := range order {
		if h < high {
			late++
		}
		high = max(high, h)
	}
	s := l.Stats()
	for _, c := range []struct {
		name      string
		got, want float64
	}{
		{"duplicates", float64(dup), 0.05 * n},
		{"overtaken", float64(late), 0.1 * n * 0.97 * 1.05}, // held back less than a packet time: not overtaken
		{"corrupt", float64(s.Corrupted), 0.02 * n},
		{"stats.dup", float64(s.Duplicated), float64(dup)},
	} {
		if math.Abs(c.got-c.want) > 0.1*c.want {
			t.Errorf("%s: %v, want about %v", c.name, c.got, c.want)
		}
	}
}

func TestDown(t *testing.T) {
	l := New(1, "l", 16)
	set(t, l, 0, Spec{Delay: 1000})
	l.Send(0, 1, 100, false)
	set(t, l, 500, Spec{Delay: 1000, Down: true})
	if v := l.Send(600, 2, 100, false); v != IsDown {
		t.Error(v)
	}
	set(t, l, 700, Spec{Delay: 1000})
	l.Send(700, 3, 100, false)
	a, _ := l.Next(5000)
	b, ok := l.Next(5000)
	if !a.Lost || a.Handle != 1 || !a.Last || !ok || b.Lost || b.Handle != 3 {
		t.Error(a, b, ok)
	}
}

// Whatever the calls, every handle comes back exactly once with Last, in time order, and the link never holds more
// than its slots.
func TestHandlesProperty(t *testing.T) {
	for seed := range uint64(200) {
		r := rng.New(seed, "test")
		l := New(seed, "l", 1+r.IntN(40))
		specs := func() Spec {
			s := Spec{}
			pick := func(p float64) bool { return r.Chance(p) }
			if pick(.5) {
				s.Delay = mono.Duration(r.IntN(5000))
			}
			if pick(.3) {
				s.Jitter = mono.Duration(r.IntN(5000))
			}
			if pick(.5) {
				s.RateBps, s.Queue = uint64(1e6+r.IntN(1e10)), r.IntN(20_000)
				s.ECNMin = r.IntN(10_000)
				s.ECNMax = s.ECNMin + r.IntN(10_000)
			}
			if pick(.3) {
				s.Loss, s.Burst = r.Float64()/2, float64(r.IntN(5))
			}
			if s.Burst > 1 {
				s.Loss = min(s.Loss, s.Burst/(s.Burst+1))
			}
			if pick(.3) {
				s.Reorder, s.Duplicate, s.Corrupt = r.Float64(), r.Float64(), r.Float64()
			}
			s.Down = pick(.1)
			return s
		}
		owned := map[Handle]bool{}
		next, now, lastAt := Handle(0), mono.Time(0), mono.Time(0)
		take := func(until mono.Time) {
			for {
				w := l.NextWake()
				if w > until {
					return
				}
				if w < lastAt {
					t.Fatalf("seed %d: arrival at %d after %d", seed, w, lastAt)
				}
				lastAt = w
				o, ok := l.Next(w)
				if !ok || !owned[o.Handle] {
					t.Fatalf("seed %d: %+v %v was not on its way", seed, o, ok)
				}
				if o.Last {
					delete(owned, o.Handle)
				}
			}
		}
		set(t, l, 0, specs())
		for range 2000 {
			now += mono.Time(r.IntN(2000))
			take(now)
			lastAt = now
			if r.Chance(.01) {
				set(t, l, now, specs())
			}
			room := l.Room()
			v := l.Send(now, next, 100+r.IntN(4000), r.Chance(.5))
			if v == Queued {
				owned[next] = true
			}
			if (v == NoSlot) != (room <= 0 && v != IsDown) || l.InFlight() > len(l.fifo) {
				t.Fatalf("seed %d: %v with room %d, %d in flight", seed, v, room, l.InFlight())
			}
			next++
		}
		take(mono.Never - 1)
		if len(owned) != 0 || l.InFlight() != 0 {
			t.Fatalf("seed %d: %d handles kept", seed, len(owned))
		}
		s := l.Stats()
		if gone := s.Lost + s.QueueFull + s.Down + s.NoSlot; s.Sent+s.Duplicated != s.Delivered+gone {
			t.Fatalf("seed %d: %+v does not add up", seed, s)
		}
	}
}

// Switching one impairment on does not move another, and a seed repeats.
func TestDrawsAreApart(t *testing.T) {
	losses := func(seed uint64, s Spec) string {
		l := New(seed, "l", 4096)
		set(t, l, 0, s)
		var b strings.Builder
		for i := range 1000 {
			if l.Send(mono.Time(i), 0, 100, true) == Lost {
				b.WriteByte('x')
			} else {
				b.WriteByte('.')
			}
		}
		return b.String()
	}
	a := losses(1, Spec{Loss: .1})
	if a != losses(1, Spec{Loss: .1, Duplicate: .3, Corrupt: .1, Reorder: .2, Jitter: 50}) {
		t.Error("other impairments moved the losses")
	}
	if a == losses(2, Spec{Loss: .1}) {
		t.Error("the seed has no effect")
	}
}

func TestCheck(t *testing.T) {
	l := New(1, "l", 4)
	for _, s := range []Spec{
		{Loss: 1.1}, {Loss: math.NaN()}, {Duplicate: -1}, {Delay: -1}, {Jitter: 4000 * mono.Second}, {RateBps: 1e15},
		{Queue: -1}, {ECNMin: 5, ECNMax: 4}, {Burst: -1}, {Loss: .95, Burst: 8},
	} {
		if l.Set(0, s) == nil {
			t.Errorf("%+v passed", s)
		}
	}
	set(t, l, 0, Spec{Loss: 1, Burst: 8})
}

func TestNoAllocation(t *testing.T) {
	l := New(1, "l", 256)
	set(t, l, 0, Spec{RateBps: 1e10, Delay: 1000, Jitter: 1000, Loss: .1, Burst: 3, Reorder: .1, Duplicate: .1, Corrupt: .1})
	now := mono.Time(0)
	if n := testing.AllocsPerRun(1000, func() {
		for range 20 {
			now += 1000
			l.Send(now, 1, 1000, true)
			for _, ok := l.Next(now); ok; _, ok = l.Next(now) {
			}
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkLink(b *testing.B) {
	l := New(1, "l", 4096)
	if err := l.Set(0, Spec{RateBps: 100e9, Queue: 1 << 20, Delay: 20 * mono.Microsecond, Loss: .01, ECNMin: 1 << 16, ECNMax: 1 << 18}); err != nil {
		b.Fatal(err)
	}
	now := mono.Time(0)
	for i := 0; i < b.N; i++ {
		now += 340
		l.Send(now, 1, 4200, true)
		for _, ok := l.Next(now); ok; _, ok = l.Next(now) {
		}
	}
}
