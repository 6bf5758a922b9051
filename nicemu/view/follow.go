package view

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/metaroce/metaroce/daemon/api"
)

// Source asks the daemon what the ports are like now.
type Source func() (api.Ports, error)

// Tell takes over what a daemon says of the NICs. With an error, nobody works for them any more: they are down, and
// their counters stay.
func (s *Spec) Tell(p api.Ports, err error) {
	for i := range s.NICs {
		n := &s.NICs[i]
		at := slices.IndexFunc(p.NICs, func(q api.Port) bool { return q.Name == n.Port })
		if err != nil || at < 0 {
			n.Down = true
			continue
		}
		q := &p.NICs[at]
		n.Down, n.Rate, n.Version = !q.Up, q.Rate, p.Version
		n.Counters, n.HWCounters = q.Counters, q.HWCounters
		n.GIDs = n.GIDs[:0]
		for _, text := range q.Addrs {
			gid := emptyGID
			if a, err := netip.ParseAddr(text); err == nil {
				gid = GID(a)
			}
			n.GIDs = append(n.GIDs, gid)
		}
	}
}

// Kept is a tree and what it shows.
type Kept struct {
	Spec  Spec
	Files *Files
}

// often is for how many NICs the files are as young as Lifespan says. More of them are kept as many times less often, which
// bounds what it costs; measured times would not do, as they are long when the machine is busy.
const often = 64

// Follow keeps trees up to date until ctx ends. All of them show NICs of one daemon, which may still be starting: until
// it has answered once, nothing changes.
func Follow(ctx context.Context, ask Source, trees []*Kept) {
	nics := 0
	for _, t := range trees {
		nics += len(t.Spec.NICs)
	}
	pause := Lifespan * time.Millisecond * time.Duration(1+nics/often)
	for known := false; ; {
		ports, err := ask()
		if known = known || err == nil; !known {
			if !sleep(ctx, pause/5) {
				return
			}
			continue
		}
		for _, t := range trees {
			t.Spec.Tell(ports, err)
			_ = t.Files.Update(Tree(t.Spec)) // tried again the next time; there is nobody to tell
		}
		wait := pause
		if err != nil {
			wait = 5 * pause
		}
		if !sleep(ctx, wait) {
			return
		}
	}
}

// sleep reports false when ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
