package cmd

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"

	"github.com/metaroce/metaroce/daemon/api"
	"github.com/metaroce/metaroce/daemon/client"
	"github.com/metaroce/metaroce/nicemu/fail"
	"github.com/metaroce/metaroce/nicemu/lab"
	"github.com/metaroce/metaroce/nicemu/labfile"
	"github.com/metaroce/metaroce/nicemu/rundir"
	"github.com/metaroce/metaroce/nicemu/view"
)

// target is a daemon and the NICs of it that are meant.
type target struct {
	socket string
	client *client.Client
	status api.Status
	nicArg []string        // for MR_NIC
	nics   []api.NICStatus // those meant
}

// dial connects to a daemon and turns what can go wrong into what to do about it.
func dial(socket string) (*client.Client, error) {
	c, err := client.Dial(socket)
	switch {
	case err == nil:
		return c, nil
	case errors.Is(err, client.ErrVersion):
		return nil, fail.Failf("%s: %w: restart it with this version (nicemu down, nicemu up)", socket, err)
	case errors.Is(err, os.ErrPermission):
		return nil, fail.Failf("%s: you may not use this daemon; who started it can open it with --group", socket)
	}
	return nil, err
}

// findSocket returns the control socket: MR_SOCKET, else the first that answers.
func findSocket() (string, *client.Client, error) {
	if s := os.Getenv("MR_SOCKET"); s != "" {
		c, err := dial(s)
		if err != nil {
			return "", nil, fail.Failf("no daemon answers at MR_SOCKET=%s: %w", s, err)
		}
		return s, c, nil
	}
	var denied error
	for _, s := range rundir.Sockets() {
		c, err := dial(s)
		if err == nil {
			return s, c, nil
		}
		var f *fail.Error
		if errors.As(err, &f) && denied == nil {
			denied = err
		}
	}
	if denied != nil {
		return "", nil, denied
	}
	return "", nil, fail.Failf("no daemon runs; start one: nicemu up --addr 10.0.0.1/24, or a lab: nicemu lab up two-hosts")
}

// findTarget finds the daemon and the NICs that a command is about. An empty name means all.
func findTarget(nic string) (*target, error) {
	if nic == "" {
		nic = os.Getenv("MR_NIC")
	}
	if nic == "" || os.Getenv("MR_SOCKET") != "" {
		socket, c, err := findSocket()
		if err != nil {
			return nil, err
		}
		return newTarget(socket, c, nic)
	}
	// A name may belong to any daemon that answers.
	var known []string
	for _, s := range rundir.Sockets() {
		c, err := dial(s)
		if err != nil {
			continue
		}
		t, err := newTarget(s, c, nic)
		if err == nil {
			return t, nil
		}
		known = append(known, allNames(c)...)
		_ = c.Close()
	}
	if len(known) == 0 {
		_, _, err := findSocket()
		return nil, err
	}
	return nil, unknownNIC(nic, known)
}

func allNames(c *client.Client) []string {
	var st api.Status
	if c.Mgmt("status", nil, &st) != nil {
		return nil
	}
	var names []string
	for _, n := range st.NICs {
		names = append(names, n.Name)
	}
	return names
}

func unknownNIC(nic string, known []string) error {
	if near := labfile.Nearest(nic, known); near != "" {
		return fail.Usagef("no NIC %q; did you mean %q?", nic, near)
	}
	return fail.Usagef("no NIC %q; there are %s", nic, strings.Join(known, ", "))
}

func newTarget(socket string, c *client.Client, nic string) (*target, error) {
	t := &target{socket: socket, client: c}
	if err := c.Mgmt("status", nil, &t.status); err != nil {
		return nil, fmt.Errorf("%s: %w", socket, err)
	}
	var known []string
	for _, n := range t.status.NICs {
		known = append(known, n.Name)
		if nic == "" || named(nic, n) {
			t.nics = append(t.nics, n)
			t.nicArg = append(t.nicArg, n.Name)
		}
	}
	if len(t.nics) == 0 {
		return nil, unknownNIC(nic, known)
	}
	return t, nil
}

// named reports whether a list of HOST/mrN, HOST or mrN names the NIC.
func named(list string, n api.NICStatus) bool {
	host, _, _ := strings.Cut(n.Name, "/")
	return slices.ContainsFunc(strings.Split(list, ","), func(w string) bool { return w == n.Name || w == host || w == n.Dev })
}

const unknownHellos = ^uint64(0)

// hellos is how many connections the daemon has had. Ours stays open meanwhile, so that it does not count twice.
func (t *target) hellos() uint64 {
	var s api.Stats
	if t.client.Mgmt("stats", nil, &s) != nil {
		return unknownHellos
	}
	return s.Daemon["mroce_control_connections_total"]
}

// view describes the NICs for the view of /sys.
func (t *target) view() []view.NIC {
	var nics []view.NIC
	for _, n := range t.nics {
		v := view.NIC{Name: n.Dev, RateGb: 100, Version: t.status.Daemon.Version, GUID: n.GUID}
		if g := n.GUID; len(g) == 16 {
			v.GUID = g[:4] + ":" + g[4:8] + ":" + g[8:12] + ":" + g[12:]
		}
		for _, a := range n.Addrs {
			if ip := net.ParseIP(a); ip != nil {
				v.GIDs = append(v.GIDs, gidText(ip))
			}
		}
		var rate uint64
		for _, p := range n.Planes {
			rate += p.RateBps
		}
		if rate > 0 {
			v.RateGb = max(1, int(rate/1e9))
		}
		nics = append(nics, v)
	}
	return nics
}

func gidText(ip net.IP) string {
	b := ip.To16()
	var parts []string
	for i := 0; i < 16; i += 2 {
		parts = append(parts, fmt.Sprintf("%02x%02x", b[i], b[i+1]))
	}
	return strings.Join(parts, ":")
}

// targets are all daemons that a management command is about: the one of MR_SOCKET, or every one of a lab.
func targets(nic, labName string) ([]*target, error) {
	if os.Getenv("MR_SOCKET") != "" || nic != "" {
		t, err := findTarget(nic)
		if err != nil {
			return nil, err
		}
		return []*target{t}, nil
	}
	if labName != "" {
		s, err := lab.Find("", labName)
		if err != nil {
			return nil, err
		}
		return targetsOf(s)
	}
	all, err := lab.List("")
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(s *lab.State) bool { return s.Health() == "down" })
	switch len(all) {
	case 0:
		t, err := findTarget("")
		if err != nil {
			return nil, err
		}
		return []*target{t}, nil
	case 1:
		return targetsOf(all[0])
	}
	var ts []*target
	for _, s := range all {
		more, err := targetsOf(s)
		if err != nil {
			return nil, err
		}
		ts = append(ts, more...)
	}
	return ts, nil
}

// targetsOf connects to all daemons of a lab that live.
func targetsOf(s *lab.State) ([]*target, error) {
	var ts []*target
	var first error
	for _, d := range s.Daemons {
		c, err := dial(d.Socket)
		if err == nil {
			var t *target
			if t, err = newTarget(d.Socket, c, ""); err == nil {
				ts = append(ts, t)
			}
		}
		if err != nil && first == nil {
			first = fmt.Errorf("daemon %s of %s does not answer (%w); its log: %s", d.Name, s.Name, err, d.Log)
		}
	}
	if len(ts) == 0 {
		return nil, first
	}
	return ts, nil
}

func (t *target) call(cmd, nic string, args, out any) error {
	err := t.client.MgmtNIC(cmd, nic, args, out)
	var e *api.Error
	if errors.As(err, &e) {
		code := fail.Failed
		if e.Code == api.CodeBadRequest || e.Code == api.CodeUnknownNIC {
			code = fail.Usage
		}
		return fail.New(code, "%s", e.Message)
	}
	return err
}
