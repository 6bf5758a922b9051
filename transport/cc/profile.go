package cc

import (
	"fmt"

	"github.com/metaroce/metaroce/internal/mono"
)

// Profile names a controller and its settings. It can be changed while data flows.
type Profile struct {
	Name   string        // one of Profiles
	Window int           // fixed: bytes
	Target mono.Duration // delay-ecn, polite: 0 = by the wire
}

// Names of the profiles.
const (
	ProfileDelayECN = "delay-ecn"
	ProfilePolite   = "polite"
	ProfileFixed    = "fixed"
)

// Profiles are the names, the default one first, each with a line for people.
var Profiles = [...][2]string{
	{ProfileDelayECN, "delay and marks; loss alone never cuts (the default)"},
	{ProfilePolite, "the same, but halves on loss and then grows by a packet a round trip: for networks shared with TCP"},
	{ProfileFixed, "a window that never changes: for tests and comparisons"},
}

// Check says what is wrong with a profile.
func (p Profile) Check() error {
	for _, x := range Profiles {
		if x[0] != p.Name {
			continue
		}
		switch {
		case p.Name == ProfileFixed && p.Window <= 0:
			return fmt.Errorf("profile fixed needs a window")
		case p.Name != ProfileFixed && p.Window != 0:
			return fmt.Errorf("profile %s finds its window by itself", p.Name)
		case p.Target < 0 || p.Name == ProfileFixed && p.Target != 0:
			return fmt.Errorf("profile %s: no such delay target", p.Name)
		}
		return nil
	}
	return fmt.Errorf("no congestion profile %q", p.Name)
}

// Make returns the profile's controller.
func (p Profile) Make(l Limits) Controller {
	if p.Target > 0 {
		l.Target = p.Target
	}
	switch p.Name {
	case ProfileFixed:
		return &Fixed{W: p.Window}
	case ProfilePolite:
		return NewPolite(l)
	}
	return NewDelayECN(l)
}

// NewPolite returns a controller that shares a network with TCP: a round trip with loss halves the window, and from the
// first loss on it grows by one packet a round trip.
func NewPolite(l Limits) *DelayECN {
	c := NewDelayECN(l)
	c.polite = true
	return c
}
