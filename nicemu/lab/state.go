// Package lab brings labs up and down and runs programs in them.
//
// A lab is: a state file, a holder of namespaces (space) unless the machine refuses them, and one daemon or one per
// host (serve). Everything is recorded as it is made, so that `lab down` cleans up whatever a killed `lab up` left.
package lab

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/metaroce/metaroce/daemon/fail"
	"github.com/metaroce/metaroce/daemon/rundir"
	"github.com/metaroce/metaroce/nicemu/labfile"
	"github.com/metaroce/metaroce/nicemu/space"
)

// Isolation says how hosts are kept apart.
type Isolation string

// Kinds of isolation.
const (
	IsolateRoot Isolation = "root" // namespaces made by root
	IsolateUser Isolation = "user" // namespaces inside a user namespace
	IsolateNone Isolation = "none" // refused here: all hosts are this machine
)

// Kinds of State.
const (
	KindLab = "lab" // made by `lab up`
	KindNIC = "nic" // made by `up`
)

// State is a lab (or a single NIC made by `up`) as it is recorded.
type State struct {
	Kind      string          `json:"kind"`
	Name      string          `json:"name"`
	File      string          `json:"file"`
	Created   time.Time       `json:"created"`
	Boot      string          `json:"boot"`
	Wire      string          `json:"wire"`
	Transport string          `json:"transport"`
	Isolation Isolation       `json:"isolation"`
	OOB       string          `json:"oob"` // how TCP of the programs travels: planes, veth, machine
	Planes    int             `json:"planes"`
	Plane     labfile.Plane   `json:"plane"`
	Holder    *rundir.Process `json:"holder,omitempty"`
	Daemons   []Daemon        `json:"daemons"`
	Hosts     []Host          `json:"hosts"`
	Programs  []string        `json:"-"`
	Ready     bool            `json:"ready"`
	NoView    bool            `json:"no_view,omitempty"`

	dir string
}

// Daemon is one daemon process.
type Daemon struct {
	Name    string          `json:"name"`
	Socket  string          `json:"socket"`
	Log     string          `json:"log"`
	Process *rundir.Process `json:"process,omitempty"`
}

// Host is one host.
type Host struct {
	Name      string    `json:"name"`
	NICs      []NIC     `json:"nics"`
	NS        *space.NS `json:"ns,omitempty"`
	Daemon    int       `json:"daemon"`              // index into Daemons
	Transport string    `json:"transport,omitempty"` // when it is not the lab's
}

// NIC is one NIC of a host.
type NIC struct {
	Name  string         `json:"name"`
	GUID  uint64         `json:"guid"`
	Addrs []netip.Prefix `json:"addrs"`
}

// Dir is where the lab's files are.
func (s *State) Dir() string { return s.dir }

func (s *State) path() string { return filepath.Join(s.dir, "state.json") }

// save writes the state so that a reader sees the old or the new one, never half.
func (s *State) save() error {
	text, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	tmp := s.path() + ".new"
	if err := os.WriteFile(tmp, append(text, '\n'), 0o600); err != nil {
		return fmt.Errorf("cannot record the lab: %w", err)
	}
	return os.Rename(tmp, s.path())
}

func load(dir string) (*State, error) {
	text, err := os.ReadFile(filepath.Join(dir, "state.json"))
	if err != nil {
		return nil, err
	}
	s := &State{dir: dir}
	if err := json.Unmarshal(text, s); err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	return s, nil
}

// Host returns the host of that name, or nil.
func (s *State) Host(name string) *Host {
	for i := range s.Hosts {
		if s.Hosts[i].Name == name {
			return &s.Hosts[i]
		}
	}
	return nil
}

// HostNames lists the hosts.
func (s *State) HostNames() []string {
	var names []string
	for _, h := range s.Hosts {
		names = append(names, h.Name)
	}
	return names
}

// Health is "up", "down" (nothing lives), or what is missing.
func (s *State) Health() string {
	alive, dead := 0, ""
	for _, d := range s.Daemons {
		if d.Process != nil && d.Process.Alive() {
			alive++
		} else {
			dead = d.Name
		}
	}
	holderDead := s.Holder != nil && !s.Holder.Alive()
	switch {
	case alive == 0:
		return "down"
	case holderDead:
		return "namespaces lost"
	case dead != "" && len(s.Daemons) > 1:
		return "daemon " + dead + " lost"
	case !s.Ready:
		return "unfinished"
	}
	return "up"
}

// List returns all recorded labs and NICs, by name: those in the directory where this user's new ones go, and no
// others. What XDG_RUNTIME_DIR keeps apart stays apart.
func List(kind string) ([]*State, error) {
	base, err := rundir.Dir()
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(base)
	if err != nil {
		return nil, err
	}
	var all []*State
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		s, err := load(filepath.Join(base, e.Name()))
		if err == nil && (kind == "" || s.Kind == kind) {
			all = append(all, s)
		}
	}
	slices.SortFunc(all, func(a, b *State) int { return strings.Compare(a.Name, b.Name) })
	return all, nil
}

// Find returns the lab of that name, or the only one when the name is empty.
func Find(kind, name string) (*State, error) {
	all, err := List(kind)
	if err != nil {
		return nil, err
	}
	what, make := "lab", "nicemu lab up two-hosts"
	if kind == KindNIC {
		what, make = "NIC", "nicemu up --addr 10.0.0.1/24"
	}
	var names []string
	for _, s := range all {
		if s.Name == name {
			return s, nil
		}
		names = append(names, s.Name)
	}
	switch {
	case len(all) == 0 && name != "":
		return nil, fail.Failf("no %s %q is up: none is; `%s` makes one", what, name, make)
	case len(all) == 0:
		return nil, fail.Failf("no %s is up; `%s` makes one", what, make)
	case name == "" && len(all) == 1:
		return all[0], nil
	case name == "":
		how := "--lab " + names[0]
		if kind == KindNIC {
			how = "nicemu down " + names[0]
		}
		return nil, fail.Usagef("several %ss are up (%s); name one, for example: %s", what, join(names), how)
	}
	if near := labfile.Nearest(name, names); near != "" {
		return nil, fail.Failf("no %s %q is up; did you mean %q?", what, name, near)
	}
	return nil, fail.Failf("no %s %q is up; up: %s", what, name, join(names))
}

func join(names []string) string {
	s := ""
	for i, n := range names {
		if i > 0 {
			s += ", "
		}
		s += n
	}
	return s
}

// lock keeps two commands from making or removing the same lab at once. The lock file stays.
func lock(base, name string) (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(base, "."+name+".lock"), os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, err
	}
	end := time.Now().Add(30 * time.Second)
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) || time.Now().After(end) {
			f.Close()
			return nil, fail.Failf("another command is working on %s", name)
		}
		time.Sleep(50 * time.Millisecond)
	}
}
