package lab

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/metaroce/metaroce/daemon/rundir"
	"github.com/metaroce/metaroce/nicemu/space"
)

// grace is what programs and daemons get between SIGTERM and SIGKILL.
const grace = 3 * time.Second

// Down ends a lab: its programs, its daemons, its namespaces, its files. It works on what is left of a lab, too.
func (s *State) Down() error {
	unlock, err := lock(filepath.Dir(s.dir), s.Name)
	if err != nil {
		return err
	}
	defer unlock()
	return s.down()
}

func (s *State) down() error {
	errs := []error{s.endPrograms()}
	var ps []rundir.Process
	for _, d := range s.Daemons {
		if d.Process != nil {
			ps = append(ps, *d.Process)
		}
	}
	errs = append(errs, rundir.EndAll(ps, grace))
	if s.Holder != nil {
		errs = append(errs, s.Holder.End(grace))
	}
	base := filepath.Dir(s.dir)
	for _, d := range s.Daemons {
		errs = append(errs, os.RemoveAll(filepath.Join(base, "sysfs", filepath.Base(d.Socket)))) // what `run` without a view left
		if err := os.Remove(d.Socket); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("%s: %w", s.Name, err)
	}
	_ = os.Remove(filepath.Join(base, "sysfs")) // unless others have something there
	return os.RemoveAll(s.dir)
}

// endPrograms ends what runs in the hosts: everything in their network namespaces (a program's children too), and,
// where hosts have none, the programs that `lab exec` recorded.
func (s *State) endPrograms() error {
	var ps []rundir.Process
	if s.Holder != nil && s.Holder.Alive() {
		for _, h := range s.Hosts {
			if h.NS == nil {
				continue
			}
			// The number is taken anew once held by pidfd; a process that left meanwhile is not ours any more.
			inside := space.Inside(s.Holder.PID, *h.NS)
			if err := rundir.EndIf(inside, grace, func(pid int) bool { return space.IsInside(s.Holder.PID, *h.NS, pid) }); err != nil {
				return err
			}
		}
		return nil
	}
	for _, p := range s.programs() {
		ps = append(ps, p.Process)
	}
	return rundir.EndAll(ps, grace)
}
