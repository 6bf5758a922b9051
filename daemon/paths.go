package daemon

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/metaroce/metaroce/daemon/api"
	"github.com/metaroce/metaroce/device"
	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/transport/cc"
	"github.com/metaroce/metaroce/transport/metaroce"
)

// The management commands about paths: deny, allow, entropies, probe, profile.

func badArgs(cmd string, err error) error {
	return &api.Error{Code: api.CodeBadRequest, Message: fmt.Sprintf("%s: %v", cmd, err)}
}

// eachPaths runs f for the paths of every NIC meant, and answers with what f says of each. A peer is a peer of some of the
// NICs: that the others do not know it is no error. Any other error is in the answer, where mark puts it.
func eachPaths[T any](nics []*device.NIC, cmd string, f func(n *device.NIC, p device.PathManager) (T, error), mark func(v *T, nic, why string)) (any, error) {
	out, failed := []T{}, []T{}
	var errs []string
	strangers := 0
	for _, n := range nics {
		p, err := n.Paths(), errNoPaths
		var v T
		if p != nil {
			if v, err = f(n, p); err == nil {
				out = append(out, v)
				continue
			}
		}
		errs = append(errs, fmt.Sprintf("%s: %v", n.Name(), err))
		if errors.Is(err, metaroce.ErrNoPeer) {
			strangers++
			continue
		}
		mark(&v, n.Name(), err.Error())
		failed = append(failed, v)
	}
	switch {
	case len(nics) == 0:
		return nil, badArgs(cmd, fmt.Errorf("which NIC?"))
	case len(out) > 0:
		return append(out, failed...), nil
	case strangers == len(nics):
		return nil, &api.Error{Code: api.CodeNoPeer, Message: fmt.Sprintf("%s: %s", cmd, errs[0])}
	}
	return nil, badArgs(cmd, errors.New(strings.Join(errs, "; ")))
}

var errNoPaths = errors.New("its transport has no paths")

func markChange(c *api.PathChange, nic, why string) { c.NIC, c.Error = nic, why }

// peerOf reads an address; "" is none.
func peerOf(s string) (netip.Addr, error) {
	if s == "" {
		return netip.Addr{}, nil
	}
	a, err := netip.ParseAddr(s)
	if err != nil {
		return a, fmt.Errorf("%q is no address", s)
	}
	return a.Unmap(), nil
}

func orAny(n *int) int {
	if n == nil {
		return metaroce.Any
	}
	return *n
}

func (d *Daemon) deny(nics []*device.NIC, args json.RawMessage) (any, error) {
	return d.setPaths(nics, args, "deny", true)
}

func (d *Daemon) allow(nics []*device.NIC, args json.RawMessage) (any, error) {
	return d.setPaths(nics, args, "allow", false)
}

func (d *Daemon) setPaths(nics []*device.NIC, args json.RawMessage, cmd string, deny bool) (any, error) {
	var a api.PathArgs
	if err := strict(args, &a); err != nil {
		return nil, badArgs(cmd, err)
	}
	peer, err := peerOf(a.Peer)
	if err != nil {
		return nil, badArgs(cmd, err)
	}
	if a.SourcePort != 0 && (a.Path != nil || a.Peer != "") {
		return nil, badArgs(cmd, fmt.Errorf("an entropy is denied to all paths and peers"))
	}
	sel := metaroce.PathSel{Peer: peer, Plane: orAny(a.Plane), Path: orAny(a.Path)}
	now := d.clock.now()
	return eachPaths(nics, cmd, func(n *device.NIC, p device.PathManager) (c api.PathChange, err error) {
		c.NIC = n.Name()
		switch {
		case a.SourcePort != 0:
			c.Changed, err = p.DenyPort(now, sel.Plane, a.SourcePort, deny)
		case deny:
			c.Changed, err = p.DenyPaths(now, sel)
		default:
			c.Changed, err = p.AllowPaths(now, sel)
		}
		return c, err
	}, markChange)
}

func (d *Daemon) entropies(nics []*device.NIC, args json.RawMessage) (any, error) {
	var a api.EntropyArgs
	if err := strict(args, &a); err != nil {
		return nil, badArgs("entropies", err)
	}
	peer, err := peerOf(a.Peer)
	if err != nil {
		return nil, badArgs("entropies", err)
	}
	modes := []string{metaroce.EntropyAuto.String(), metaroce.EntropyGenerated.String(), metaroce.EntropyExplicit.String()}
	mode := slices.Index(modes, a.Mode)
	if mode < 0 {
		return nil, badArgs("entropies", fmt.Errorf("mode %q: want automatic, generated or explicit", a.Mode))
	}
	e := metaroce.Entropies{Mode: metaroce.EntropyMode(mode), List: a.List, First: a.First, Step: a.Step, Count: a.Count}
	return eachPaths(nics, "entropies", func(n *device.NIC, p device.PathManager) (api.PathChange, error) {
		return api.PathChange{NIC: n.Name()}, p.SetEntropies(d.clock.now(), peer, orAny(a.Plane), e)
	}, markChange)
}

func (d *Daemon) probe(nics []*device.NIC, args json.RawMessage) (any, error) {
	var a api.ProbeArgs
	if err := strict(args, &a); err != nil {
		return nil, badArgs("probe", err)
	}
	peer, err := peerOf(a.Peer)
	if err != nil {
		return nil, badArgs("probe", err)
	}
	if len(nics) != 1 {
		return nil, badArgs("probe", fmt.Errorf("from which NIC?"))
	}
	n, now := nics[0], d.clock.now()
	p := n.Paths()
	if p == nil {
		return nil, badArgs("probe", fmt.Errorf("%s: %w", n.Name(), errNoPaths))
	}
	if a.ID == 0 {
		a.ID, err = p.StartProbe(now, metaroce.ProbeSpec{Remote: peer, Plane: a.Plane, Path: a.Path, SrcPort: a.SourcePort, Size: a.Bytes,
			Control: a.Control, Wait: mono.Duration(min(max(a.Timeout, 0), 60) * float64(mono.Second))})
		if err != nil {
			return nil, badArgs("probe", err)
		}
	}
	r, ok := p.ProbeResult(now, a.ID)
	if !ok {
		return nil, badArgs("probe", fmt.Errorf("no such probe, or its result is forgotten"))
	}
	return api.Probe{NIC: n.Name(), ID: a.ID, Peer: a.Peer, Plane: a.Plane, Path: a.Path, SourcePort: r.SrcPort, Bytes: r.Size, Done: r.Done,
		Answered: r.Answered, RTT: r.RTT.Seconds()}, nil
}

func (d *Daemon) profile(nics []*device.NIC, args json.RawMessage) (any, error) {
	var a api.ProfileArgs
	if err := strict(args, &a); err != nil {
		return nil, badArgs("profile", err)
	}
	peer, err := peerOf(a.Peer)
	if err != nil {
		return nil, badArgs("profile", err)
	}
	known := []api.ProfileInfo{}
	for _, x := range cc.Profiles {
		known = append(known, api.ProfileInfo{Name: x[0], About: x[1]})
	}
	return eachPaths(nics, "profile", func(n *device.NIC, p device.PathManager) (api.Profiles, error) {
		if a.Name != "" {
			if err := p.SetProfile(d.clock.now(), peer, cc.Profile{Name: a.Name, Window: a.Window, Target: mono.Duration(a.Target * 1e9)}); err != nil {
				return api.Profiles{}, err
			}
		}
		now := p.Profile()
		return api.Profiles{NIC: n.Name(), Name: now.Name, Window: now.Window, Target: now.Target.Seconds(), Known: known}, nil
	}, func(p *api.Profiles, nic, why string) { p.NIC, p.Known, p.Error = nic, known, why })
}
