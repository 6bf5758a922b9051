package cmd

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"

	"github.com/metaroce/metaroce/daemon/api"
	"github.com/metaroce/metaroce/daemon/client"
	"github.com/metaroce/metaroce/daemon/fail"
	"github.com/metaroce/metaroce/daemon/rundir"
	"github.com/metaroce/metaroce/nicemu/lab"
	"github.com/metaroce/metaroce/nicemu/labfile"
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
		var told *fail.Error
		if errors.As(err, &told) {
			return "", nil, err
		}
		if err != nil {
			return "", nil, fail.Failf("no daemon answers at MR_SOCKET=%s (%w); unset MR_SOCKET to look in the usual places", s, rootCause(err))
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

// rootCause leaves out what the message says already.
func rootCause(err error) error {
	for {
		next := errors.Unwrap(err)
		if next == nil {
			return err
		}
		err = next
	}
}

// noteOthers says which NIC was taken where several daemons run and nothing chose.
func (e *env) noteOthers(t *target, nic string) {
	if nic != "" || os.Getenv("MR_NIC") != "" || os.Getenv("MR_SOCKET") != "" {
		return
	}
	var others []string
	for _, s := range rundir.Sockets() {
		if s == t.socket {
			continue
		}
		if c, err := dial(s); err == nil {
			others = append(others, allNames(c)...)
			_ = c.Close()
		}
	}
	if len(others) > 0 {
		e.note("nicemu: several daemons run; this one's NICs are %s; --nic or MR_SOCKET chooses others: %s",
			strings.Join(t.nicArg, ", "), strings.Join(others, ", "))
	}
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

// means reports whether the NIC is one of those meant.
func (t *target) means(name string) bool {
	return slices.ContainsFunc(t.nics, func(n api.NICStatus) bool { return n.Name == name })
}

// asked are the names to ask the daemon for, one at a time; "" asks for all at once.
func (t *target) asked() []string {
	if len(t.nics) == len(t.status.NICs) {
		return []string{""}
	}
	return t.nicArg
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

// view describes the NICs for the view of /sys, as they are now.
func (t *target) view() []view.NIC {
	devs := map[string]int{}
	for _, n := range t.nics {
		devs[n.Dev]++
	}
	s := view.Spec{}
	for _, n := range t.nics {
		name := n.Dev
		if devs[name] > 1 { // as our library names them
			name = strings.ReplaceAll(n.Name, "/", "-")
		}
		v := view.NIC{Name: name, Port: n.Name, Version: t.status.Daemon.Version, GUID: n.GUID, Netdev: netdevOf(n.Addrs)}
		if g := n.GUID; len(g) == 16 {
			v.GUID = g[:4] + ":" + g[4:8] + ":" + g[8:12] + ":" + g[12:]
		}
		s.NICs = append(s.NICs, v)
	}
	s.Tell(t.ports())
	return s.NICs
}

// ports is the Source of the NICs over the connection that we have.
func (t *target) ports() (p api.Ports, err error) {
	err = t.client.Mgmt("ports", nil, &p)
	return p, err
}

// netdevOf is this machine's interface that has one of the NIC's addresses, or "".
func netdevOf(addrs []string) string {
	all, err := net.Interfaces()
	if err != nil {
		return ""
	}
	for _, i := range all {
		has, err := i.Addrs()
		if err != nil {
			continue
		}
		for _, a := range has {
			if ip, ok := a.(*net.IPNet); ok && slices.Contains(addrs, ip.IP.String()) {
				return i.Name
			}
		}
	}
	return ""
}

// targets are all daemons that a management command is about: the one of MR_SOCKET, or every one of a lab.
func targets(nic, labName string) ([]*target, error) {
	if nic == "" {
		nic = os.Getenv("MR_NIC")
	}
	if labName != "" && os.Getenv("MR_SOCKET") == "" {
		s, err := lab.Find("", labName)
		if err != nil {
			return nil, err
		}
		return targetsOf(s, nic)
	}
	if os.Getenv("MR_SOCKET") == "" && nic != "" {
		if err := onlyOneHas(nic); err != nil {
			return nil, err
		}
	}
	if os.Getenv("MR_SOCKET") != "" || nic != "" {
		t, err := findTarget(nic)
		if err != nil {
			return nil, err
		}
		return []*target{t}, nil
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
		return targetsOf(all[0], "")
	}
	var ts []*target
	for _, s := range all {
		more, err := targetsOf(s, "")
		if err != nil {
			return nil, err
		}
		ts = append(ts, more...)
	}
	return ts, nil
}

// onlyOneHas refuses a name that NICs of several labs have: the wrong one would be changed.
func onlyOneHas(nic string) error {
	all, err := lab.List("")
	if err != nil {
		return err
	}
	var have []string
	for _, s := range all {
		for _, h := range s.Hosts {
			if slices.ContainsFunc(h.NICs, func(n lab.NIC) bool { return named(nic, api.NICStatus{Name: h.Name + "/" + n.Name, Dev: n.Name}) }) {
				have = append(have, s.Name)
				break
			}
		}
	}
	if len(have) > 1 {
		return fail.Usagef("%s have a NIC %q; name one with --lab", strings.Join(have, " and "), nic)
	}
	return nil
}

// targetsOf connects to all daemons of a lab that live and have the NIC; "" means any.
func targetsOf(s *lab.State, nic string) ([]*target, error) {
	var ts []*target
	var unknown, lost error
	for _, d := range s.Daemons {
		c, err := dial(d.Socket)
		if err == nil {
			var t *target
			if t, err = newTarget(d.Socket, c, nic); err == nil {
				ts = append(ts, t)
			} else if fail.Code(err) == fail.Usage {
				unknown = err
				continue
			}
		}
		if err != nil && lost == nil {
			lost = fmt.Errorf("daemon %s of %s does not answer (%w); its log: %s; `nicemu %s` cleans up", d.Name, s.Name, rootCause(err), d.Log, s.DownCommand())
		}
	}
	if len(ts) == 0 {
		return nil, cmp.Or(lost, unknown)
	}
	if lost != nil && nic == "" {
		fmt.Fprintf(os.Stderr, "nicemu: left out: %v\n", lost)
	}
	return ts, nil
}

// errNoPeer is the cause when no NIC of a daemon knows the peer that was named: one of another daemon may.
var errNoPeer = errors.New("no such peer")

func (t *target) call(cmd, nic string, args, out any) error {
	err := t.client.MgmtNIC(cmd, nic, args, out)
	var e *api.Error
	if errors.As(err, &e) {
		code := fail.Failed
		switch e.Code {
		case api.CodeNoPeer:
			return &fail.Error{Code: fail.Usage, Msg: e.Message, Cause: errNoPeer}
		case api.CodeBadRequest, api.CodeUnknownNIC:
			code = fail.Usage
		}
		return fail.New(code, "%s", e.Message)
	}
	return err
}
