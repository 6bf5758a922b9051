package device_test

import (
	"errors"
	"syscall"
	"testing"

	"github.com/metaroce/metaroce/device"
	"github.com/metaroce/metaroce/device/hostq"
)

// TestLimits: of every kind there is what the device says, then ENOMEM, and all of it again when its program is gone.
func TestLimits(t *testing.T) {
	w := newWorld(t, true)
	n := w.nics[0]
	var a hostq.DeviceAttr
	n.Attr(&a)
	for range 2 {
		p := newProg(t, n)
		for _, k := range []struct {
			kind string
			most uint32
			make func() error
		}{
			{"PDs", a.MaxPD, func() error { _, err := p.ctx.AllocPD(); return err }},
			{"MRs", a.MaxMR, func() error { _, err := p.ctx.AllocNullMR(p.pd); return err }},
			{"MWs", a.MaxMW, func() error {
				_, err := p.ctx.AllocMW(&hostq.AllocMW{PD: p.pd, Type: mwType2})
				return err
			}},
			{"CQs", a.MaxCQ, func() error { _, err := p.ctx.CreateCQ(&hostq.CreateCQ{Entries: 1024, Ring: p.CQ.Off}); return err }},
			{"QPs", a.MaxQP, func() error {
				_, err := p.ctx.CreateQP(&hostq.CreateQP{PD: p.pd, Type: 2, SendCQ: p.cq, RecvCQ: p.cq})
				return err
			}},
			{"DMs", 1024, func() error { _, err := p.ctx.AllocDM(1, 0); return err }},
		} {
			made, err := uint32(0), error(nil)
			for made <= k.most {
				if err = k.make(); err != nil {
					break
				}
				made++
			}
			if made > k.most || made+2 < k.most || !errors.Is(err, syscall.ENOMEM) { // the usual program has one of some
				t.Errorf("%s: %d of %d, %v", k.kind, made, k.most, err)
			}
		}
		p.ctx.Close(w.now)
		if n.C.Live != (device.Live{}) {
			t.Fatalf("left over: %+v", n.C.Live)
		}
	}
}
