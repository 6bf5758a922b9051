package lab

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/metaroce/metaroce/daemon/rundir"
	"github.com/metaroce/metaroce/daemon/serve"
)

// NICOptions are those of UpNIC.
type NICOptions struct {
	NIC     serve.NIC
	Socket  string // "" = the usual place
	Group   string
	DMA     string // as serve.Config.DMA
	Capture string // as serve.Config.Capture
	Version string
	Note    func(string)
}

// UpNIC starts a daemon with a single NIC on this machine: a lab of one host without namespaces.
func UpNIC(ctx context.Context, o NICOptions) (*State, error) {
	base, err := rundir.Dir()
	if err != nil {
		return nil, err
	}
	name := strings.ReplaceAll(o.NIC.Name, "/", "-")
	unlock, err := lock(base, name)
	if err != nil {
		return nil, err
	}
	defer unlock()
	dir := filepath.Join(base, name)
	if err := makeRoom(dir, name, o.Note); err != nil {
		return nil, err
	}
	if err := checkMachine(); err != nil {
		return nil, err
	}
	host, dev, _ := strings.Cut(o.NIC.Name, "/")
	if o.NIC.GUID == 0 {
		o.NIC.GUID = serve.GUID("", host, dev)
	}
	socket := o.Socket
	if socket == "" {
		socket = filepath.Join(base, name+".sock")
	}
	s := &State{
		Kind: KindNIC, Name: name, Created: time.Now().Round(time.Second), Isolation: IsolateNone, OOB: "machine", Transport: cmp.Or(o.NIC.Transport, "auto"),
		Planes: len(o.NIC.Planes), dir: dir, Daemons: []Daemon{{Name: name, Socket: socket, Log: filepath.Join(dir, "daemon.log")}},
	}
	if o.NIC.HostPort != nil {
		s.OOB = "planes"
	}
	s.Wire, _, _ = strings.Cut(o.NIC.Planes[0].URL, ":")
	nic := NIC{Name: dev, GUID: o.NIC.GUID}
	nic.Addrs = o.NIC.Prefixes
	s.Hosts = []Host{{Name: host, NICs: []NIC{nic}}}
	cfg := &serve.Config{
		Name: name, Socket: socket, Group: o.Group, DMA: o.DMA, Transport: s.Transport, Version: o.Version, Seed: serve.SecretSeed(), Private: true,
		Spool: filepath.Join(dir, "spool"), Capture: o.Capture, NICs: []serve.NIC{o.NIC},
	}
	if err := os.MkdirAll(cfg.Spool, 0o700); err != nil {
		return nil, err
	}
	if err := s.startDaemon(ctx, 0, cfg, nil); err != nil {
		if e := s.down(); e != nil {
			return nil, fmt.Errorf("%w; and: %w", err, e)
		}
		return nil, err
	}
	s.Ready = true
	return s, s.save()
}

// Follow shows the daemon's log until ctx ends or the daemon does.
func (s *State) Follow(ctx context.Context, to io.Writer) error {
	d := &s.Daemons[0]
	return serve.Follow(ctx, d.Log, d.Process, to)
}
