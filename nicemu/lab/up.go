package lab

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/metaroce/metaroce/daemon/fail"
	"github.com/metaroce/metaroce/daemon/rundir"
	"github.com/metaroce/metaroce/daemon/serve"
	"github.com/metaroce/metaroce/device"
	"github.com/metaroce/metaroce/nicemu/labfile"
	"github.com/metaroce/metaroce/nicemu/ports"
	"github.com/metaroce/metaroce/nicemu/space"
	"github.com/metaroce/metaroce/nicemu/view"
)

// Options of Up.
type Options struct {
	File          string // where the lab came from, for people
	Version       string
	DaemonPerHost bool
	Group         string
	DMA           string // as serve.Config.DMA
	NoView        bool
	Isolation     Isolation    // "" = the best this machine allows
	OOB           string       // planes, veth; "" = over the planes where a host port is possible
	Note          func(string) // told what was decided or did not work
}

// Up brings a lab up. On error nothing of it is left.
func Up(ctx context.Context, l *labfile.Lab, o Options) (*State, error) {
	base, err := rundir.Dir()
	if err != nil {
		return nil, err
	}
	unlock, err := lock(base, l.Name)
	if err != nil {
		return nil, err
	}
	defer unlock()
	dir := filepath.Join(base, l.Name)
	if err := makeRoom(dir, l.Name, o.Note); err != nil {
		return nil, err
	}
	if err := checkMachine(); err != nil {
		return nil, err
	}
	c, err := look(o.Isolation)
	if err != nil {
		return nil, err
	}
	for _, n := range c.notes {
		o.Note(n)
	}
	// A daemon of its own is there to be killed, and the programs' TCP should not die with it.
	if o.OOB == "" && o.DaemonPerHost {
		o.OOB = "veth"
	}
	if o.OOB == "planes" && !c.hasTAP() {
		return nil, fail.Lackf("--oob planes needs a host port: %v", c.tap)
	}
	wires, err := c.wires(l, o.DaemonPerHost)
	if err != nil {
		return nil, err
	}
	var first error
	for i, wire := range wires {
		s := newState(l, c, wire, dir, o)
		err = s.bringUp(ctx, l, o)
		if err == nil {
			if n := c.firstNote(wire); n != "" && l.Wire == "auto" {
				o.Note(n)
			}
			return s, nil
		}
		if first == nil {
			first = err
		}
		if e := s.down(); e != nil {
			return nil, errors.Join(err, e)
		}
		if ctx.Err() != nil || i == len(wires)-1 {
			break
		}
		o.Note(fmt.Sprintf("wire: %s does not work here (%v); trying %s", wire, err, wires[i+1]))
	}
	if ctx.Err() != nil {
		return nil, fail.New(fail.Stopped, "stopped; nothing is left of the lab")
	}
	return nil, first
}

// makeRoom refuses a lab that runs, and clears away what a dead one left.
func makeRoom(dir, name string, note func(string)) error {
	old, err := load(dir)
	if err != nil {
		return nil
	}
	if h := old.Health(); h == "up" {
		return fail.Failf("%s is up already; `nicemu %s` ends it", name, old.DownCommand())
	}
	note("clearing away what an earlier " + name + " left (" + old.Health() + ")")
	return old.down()
}

// DownCommand is what ends it.
func (s *State) DownCommand() string {
	if s.Kind == KindNIC {
		return "down " + s.Name
	}
	return "lab down " + s.Name
}

func newState(l *labfile.Lab, c choice, wire, dir string, o Options) *State {
	s := &State{
		Kind: KindLab, Name: l.Name, File: o.File, Created: time.Now().Round(time.Second), Wire: wire, Transport: l.Transport,
		Isolation: c.isolation, Planes: l.Planes, Plane: l.Plane, NoView: o.NoView, dir: dir,
	}
	switch {
	case c.isolation == IsolateNone:
		s.OOB = "machine"
	case c.hasTAP() && o.OOB != "veth":
		s.OOB = "planes"
	default:
		s.OOB = "veth"
	}
	base := filepath.Dir(dir)
	if !o.DaemonPerHost {
		s.Daemons = []Daemon{{Name: l.Name, Socket: filepath.Join(base, l.Name+".sock"), Log: filepath.Join(dir, "daemon.log")}}
	}
	for i, h := range l.Hosts {
		host := Host{Name: h.Name, Transport: h.Transport}
		if o.DaemonPerHost {
			host.Daemon = i
			s.Daemons = append(s.Daemons, Daemon{
				Name: h.Name, Socket: filepath.Join(base, l.Name+"."+h.Name+".sock"), Log: filepath.Join(dir, h.Name+".log"),
			})
		}
		for j, n := range h.NICs {
			nic := NIC{Name: n.Name, Addrs: n.Addrs, GUID: serve.GUID(l.Name, h.Name, n.Name)}
			if s.Isolation == IsolateNone {
				nic.Addrs = []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{127, 0, byte(j + 1 + i/250), byte(i%250 + 1)}), 8)}
			}
			host.NICs = append(host.NICs, nic)
		}
		s.Hosts = append(s.Hosts, host)
	}
	return s
}

func (s *State) bringUp(ctx context.Context, l *labfile.Lab, o Options) error {
	if err := os.MkdirAll(filepath.Join(s.dir, "spool"), 0o700); err != nil {
		return err
	}
	if err := s.save(); err != nil {
		return err
	}
	taps := map[space.TAP]*os.File{}
	if s.Isolation == IsolateNone {
		for i := range s.Hosts {
			h := &s.Hosts[i]
			if err := view.Write(s.sysfs(h), *s.view(h, "", o.Version)); err != nil {
				return err
			}
		}
	} else {
		made, err := s.makeSpace(o)
		if err != nil {
			return err
		}
		defer made.Close()
		taps = made.TAPs
	}
	var peers [][]serve.Peer
	if s.Wire == "udp" {
		n, release, err := s.claimNet()
		if err != nil {
			return err
		}
		defer release()
		peers = s.udpPeers(n)
	}
	cfgs, err := s.configs(l, o, taps, peers)
	if err != nil {
		return err
	}
	for i := range s.Daemons {
		if err := s.startDaemon(ctx, i, cfgs[i].config, cfgs[i].files); err != nil {
			return err
		}
	}
	s.Ready = true
	return s.save()
}

// makeSpace makes the namespaces and records their holder.
func (s *State) makeSpace(o Options) (*space.Made, error) {
	hosts, err := s.writeHosts()
	if err != nil {
		return nil, err
	}
	work := filepath.Join(s.dir, "view")
	if err := os.MkdirAll(work, 0o755); err != nil {
		return nil, err
	}
	p := space.Plan{
		MTU: s.Plane.LinkMTU(), HostMTU: s.hostMTU(), HostPort: s.OOB == "planes",
		PlaneVnetHdr: ports.PlaneVnetHdr, HostVnetHdr: ports.HostVnetHdr, Rootless: s.Isolation == IsolateUser,
	}
	if s.Wire == "tap" {
		p.Planes = s.Planes
	}
	for i := range s.Hosts {
		h := &s.Hosts[i]
		ph := space.Host{Name: h.Name, HostsFile: hosts, Socket: s.Daemons[h.Daemon].Socket}
		for _, n := range h.NICs {
			ph.NICs = append(ph.NICs, space.NIC{Name: n.Name, Addrs: n.Addrs, MAC: serve.MAC(n.GUID)})
		}
		if !o.NoView {
			ph.View = s.view(h, work, o.Version)
		}
		p.Hosts = append(p.Hosts, ph)
	}
	log, err := os.OpenFile(filepath.Join(s.dir, "holder.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	made, err := space.Start(p, log)
	if err != nil {
		return nil, err
	}
	s.Holder = &made.Holder
	for i := range s.Hosts {
		ns := made.Hosts[s.Hosts[i].Name]
		s.Hosts[i].NS = &ns
	}
	for _, n := range made.Notes {
		o.Note(n)
	}
	if err := errors.Join(s.save(), made.Keep()); err != nil {
		made.Close()
		return nil, err
	}
	return made, nil
}

// hostMTU is the MTU of the hosts' netdevs.
func (s *State) hostMTU() int {
	if s.OOB == "planes" {
		return ports.HostMTU(s.Wire, s.Plane.LinkMTU())
	}
	return s.Plane.LinkMTU()
}

// view says what the host's programs see in /sys and /dev.
func (s *State) view(h *Host, work, version string) *view.Spec {
	// Hosts with namespaces have a route to every peer over the NIC's own interface, as UCX asks when it sees gid_attrs.
	v := &view.Spec{Work: work, GIDAttrs: s.Isolation != IsolateNone}
	rate := device.RateText(s.Plane.RateBps * uint64(s.Planes))
	for _, n := range h.NICs {
		nic := view.NIC{Name: n.Name, Port: h.Name + "/" + n.Name, GUID: view.GUID(n.GUID), Rate: rate, Version: version}
		if s.Isolation != IsolateNone {
			nic.Netdev = n.Name
		}
		for _, a := range n.Addrs {
			nic.GIDs = append(nic.GIDs, view.GID(a.Addr()))
		}
		v.NICs = append(v.NICs, nic)
	}
	return v
}

// writeHosts writes the hosts file of all hosts: the machine's own, and the lab's names.
func (s *State) writeHosts() (string, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "# hosts of the lab %s\n", s.Name)
	for _, h := range s.Hosts {
		for i, n := range h.NICs {
			names := h.Name + "-" + n.Name
			if i == 0 {
				names = h.Name + " " + names
			}
			for _, a := range n.Addrs {
				fmt.Fprintf(&b, "%s\t%s\n", a.Addr(), names)
			}
		}
	}
	if machine, err := os.ReadFile("/etc/hosts"); err == nil {
		b.WriteString("# of the machine\n")
		b.Write(machine)
	}
	path := filepath.Join(s.dir, "hosts")
	return path, os.WriteFile(path, []byte(b.String()), 0o644)
}

// daemonConfig is a configuration and the descriptors it speaks of, from 3 on.
type daemonConfig struct {
	config *serve.Config
	files  []*os.File
}

// configs makes the configuration of every daemon.
func (s *State) configs(l *labfile.Lab, o Options, taps map[space.TAP]*os.File, peers [][]serve.Peer) ([]daemonConfig, error) {
	all := make([]daemonConfig, len(s.Daemons))
	for i, d := range s.Daemons {
		all[i].config = &serve.Config{
			Name: d.Name, Socket: d.Socket, Group: o.Group, DMA: o.DMA, Transport: s.Transport, Version: o.Version, Seed: l.Seed,
			Spool: filepath.Join(s.dir, "spool"), Impair: l.Impair,
		}
	}
	for i := range s.Hosts {
		h := &s.Hosts[i]
		dc := &all[h.Daemon]
		pass := func(t space.TAP) (int, error) {
			f := taps[t]
			if f == nil {
				return 0, fmt.Errorf("the TAP of %s/%s for plane %d is missing", t.Host, t.NIC, t.Plane)
			}
			dc.files = append(dc.files, f)
			return 2 + len(dc.files), nil
		}
		for _, n := range h.NICs {
			nic := serve.NIC{Name: h.Name + "/" + n.Name, Dev: n.Name, GUID: n.GUID, Transport: h.Transport}
			for _, a := range n.Addrs {
				nic.Addrs = append(nic.Addrs, a.Addr())
			}
			for plane := range s.Planes {
				w := serve.Wire{URL: s.wireURL(h.Name, n.Name, plane, peers), MTU: s.Plane.LinkMTU(), Words: s.Plane.Words(), Noise: s.Plane.Noise}
				switch s.Wire {
				case "tap":
					fd, err := pass(space.TAP{Host: h.Name, NIC: n.Name, Plane: plane})
					if err != nil {
						return nil, err
					}
					w.FD = fd
				case "udp":
					w.Peers = peers[plane]
				}
				nic.Planes = append(nic.Planes, w)
			}
			if s.OOB == "planes" {
				fd, err := pass(space.TAP{Host: h.Name, NIC: n.Name, Plane: -1})
				if err != nil {
					return nil, err
				}
				nic.HostPort = &serve.Wire{URL: "tap:" + n.Name, FD: fd, MTU: s.hostMTU()}
			}
			dc.config.NICs = append(dc.config.NICs, nic)
		}
	}
	return all, nil
}

// udpPeers gives every NIC an address of its own on each plane: 127.NET.PLANE.HOST.
func (s *State) udpPeers(net byte) [][]serve.Peer {
	planes := make([][]serve.Peer, s.Planes)
	count := 1
	for i := range s.Hosts {
		for _, n := range s.Hosts[i].NICs {
			for plane := range planes {
				at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, net, byte(plane<<4 | count>>8), byte(count)}), udpPort)
				for _, a := range n.Addrs {
					planes[plane] = append(planes[plane], serve.Peer{GID: a.Addr(), At: at})
				}
			}
			count++
		}
	}
	return planes
}

const udpPort = 4791

// claimNet finds a NET that no other lab of this machine has. The abstract socket keeps labs that come up at the same
// moment apart, until the daemon has its ports.
func (s *State) claimNet() (n byte, release func(), err error) {
	h := sha256.Sum256([]byte(s.dir))
	for i := range byte(64) {
		n := 64 + (h[0]+i)&63
		claim, err := net.Listen("unix", fmt.Sprintf("@mroce-lab-udp-%d", n))
		if err != nil {
			continue
		}
		c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, n, 0, 1), Port: udpPort})
		if err != nil {
			_ = claim.Close()
			continue
		}
		_ = c.Close()
		return n, func() { _ = claim.Close() }, nil
	}
	return 0, nil, fail.Failf("no free addresses below 127.64.0.0 for udp wires; other labs have them all")
}

func (s *State) wireURL(host, nic string, plane int, peers [][]serve.Peer) string {
	switch s.Wire {
	case "tap":
		return fmt.Sprintf("tap:%s-%s.%d", host, nic, plane)
	case "udp":
		first := s.Host(host)
		for _, n := range first.NICs {
			if n.Name != nic {
				continue
			}
			for _, p := range peers[plane] {
				if p.GID == n.Addrs[0].Addr() {
					return "udp:" + p.At.String()
				}
			}
		}
	}
	return "mem:"
}
