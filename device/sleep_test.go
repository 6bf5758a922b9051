package device_test

import (
	"net/netip"
	"testing"

	"github.com/metaroce/metaroce/device"
	"github.com/metaroce/metaroce/device/devicetest"
	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/pkt"
)

// handed is a wire that other threads hand packets to.
type handed struct {
	*devicetest.Wire
	asked, before, after int
	work                 bool
}

func (w *handed) FDs() []int { return []int{0} }

func (w *handed) RxBurst(now mono.Time, ps []pkt.Packet) int {
	w.asked++
	return w.Wire.RxBurst(now, ps)
}

func (w *handed) BeforeSleep() bool { w.before++; return w.work }
func (w *handed) AfterSleep()       { w.after++ }

// wrapped is a wrapper, as captures and impairments are.
type wrapped struct{ device.Port }

func (w wrapped) Unwrap() device.Port { return w.Port }

// TestSleepPort: a wire that others hand packets to is asked at every step, whatever its descriptors say, and hears of sleep,
// through wrappers too; what it has already keeps the loop awake.
func TestSleepPort(t *testing.T) {
	x, _ := devicetest.NewWire(4300)
	y, _ := devicetest.NewWire(4300)
	w := &handed{Wire: x}
	n, err := device.New(device.Config{Name: "a/mr0", Dev: "mr0", Ports: []device.Port{y, wrapped{w}}, Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.1")},
		NewEngine: devicetest.NewNet().New})
	if err != nil {
		t.Fatal(err)
	}
	n.UseReadiness()
	if n.Readiness() {
		t.Error("its descriptors are to be watched while awake")
	}
	for i := range 5 {
		n.Step(mono.Time(1e9 + i))
	}
	if w.asked != 5 {
		t.Errorf("asked %d times in 5 steps", w.asked)
	}
	if n.BeforeSleep() || w.before != 1 {
		t.Errorf("work without any, or not told: %d", w.before)
	}
	n.AfterSleep()
	if w.work = true; !n.BeforeSleep() || w.after != 1 {
		t.Errorf("sleeps over work, or not told of the end: %d", w.after)
	}
}
