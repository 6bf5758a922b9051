package lab

import (
	"context"
	"os"
	"path/filepath"

	"github.com/metaroce/metaroce/daemon/rundir"
	"github.com/metaroce/metaroce/daemon/serve"
)

// startDaemon starts daemon i and waits until its socket answers.
func (s *State) startDaemon(ctx context.Context, i int, cfg *serve.Config, files []*os.File) error {
	d := &s.Daemons[i]
	if err := serve.CheckSocket(d.Socket); err != nil {
		return err
	}
	path := filepath.Join(s.dir, d.Name+".json")
	if err := cfg.Write(path); err != nil {
		return err
	}
	l := serve.Launch{Name: "nicemu", Config: path, Socket: d.Socket, Log: d.Log, Files: files, Recorded: func(p rundir.Process) error {
		d.Process = &p
		return s.save()
	}}
	return l.Start(ctx)
}
