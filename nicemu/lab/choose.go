package lab

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/metaroce/metaroce/nicemu/fail"
	"github.com/metaroce/metaroce/nicemu/labfile"
	"github.com/metaroce/metaroce/nicemu/serve"
	"github.com/metaroce/metaroce/nicemu/space"
)

// choice is what this machine allows a lab.
type choice struct {
	isolation Isolation
	tun       error // nil: TAPs can be made in the namespaces
	notes     []string
}

// look tries what a lab needs; nothing is assumed from version numbers or settings.
func look() choice {
	const flags = unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWUTS
	c := choice{isolation: IsolateNone}
	err := fmt.Errorf("not root")
	if os.Getuid() == 0 {
		if err = space.Try(false, flags); err == nil {
			c.isolation = IsolateRoot
		}
	}
	if c.isolation == IsolateNone {
		if err2 := space.Try(true, flags); err2 == nil {
			c.isolation = IsolateUser
		} else {
			err = err2
		}
	}
	if c.isolation == IsolateNone {
		c.notes = append(c.notes, fmt.Sprintf("hosts: no namespaces here (%v): all hosts are this machine, with addresses 127.0.x.y; names of hosts are not known", err))
	}
	if c.tun = tryTun(); c.tun == nil && !serve.HaveTAP {
		c.tun = errors.New("the TAP driver is not built in yet")
	}
	return c
}

// tryTun reports why the TAP device cannot be opened. That a TAP can be made is seen when it is made.
func tryTun() error {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("/dev/net/tun: %w", err)
	}
	unix.Close(fd)
	return nil
}

// wires returns the wires to try, best first.
func (c choice) wires(l *labfile.Lab, perHost bool) ([]string, error) {
	noTAP := c.tun
	if c.isolation == IsolateNone {
		noTAP = fmt.Errorf("no network namespaces")
	}
	switch l.Wire {
	case "tap":
		if noTAP != nil {
			return nil, fail.Lackf("wire: tap is impossible here: %w; `nicemu doctor` says what would change that, `wire: auto` takes the next best", noTAP)
		}
		return []string{"tap"}, nil
	case "mem":
		if perHost {
			return nil, fail.Usagef("wire: mem lives in one daemon; with --daemon-per-host use tap or udp")
		}
		return []string{"mem"}, nil
	case "udp":
		return []string{"udp"}, nil
	}
	var list []string
	if noTAP == nil {
		list = append(list, "tap")
	}
	list = append(list, "udp")
	if !perHost {
		list = append(list, "mem")
	}
	return list, nil
}

// firstNote says in one line why auto did not take the first wire.
func (c choice) firstNote(took string) string {
	switch {
	case took == "tap":
		return ""
	case c.isolation == IsolateNone:
		return "wire: " + took + " (no TAP: no network namespaces)"
	case c.tun != nil:
		return fmt.Sprintf("wire: %s (no TAP: %v)", took, c.tun)
	}
	return ""
}
