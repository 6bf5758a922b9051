package lab

import (
	"fmt"
	"os"

	"github.com/metaroce/metaroce/daemon/fail"
	"github.com/metaroce/metaroce/nicemu/doctor"
	"github.com/metaroce/metaroce/nicemu/labfile"
	"github.com/metaroce/metaroce/nicemu/space"
)

// choice is what this machine allows a lab.
type choice struct {
	isolation Isolation
	tap       doctor.Check
	notes     []string
}

// look tries what a lab needs; nothing is assumed from version numbers or settings. want is a kind of isolation to
// take instead of the best one, or "".
func look(want Isolation) (choice, error) {
	c := choice{isolation: IsolateNone}
	why := error(nil)
	if (want == "" || want == IsolateRoot) && os.Getuid() == 0 {
		if why = space.Try(false); why == nil {
			c.isolation = IsolateRoot
		}
	}
	if c.isolation == IsolateNone && (want == "" || want == IsolateUser) {
		if err := space.Try(true); err == nil {
			c.isolation = IsolateUser
		} else {
			why = err
		}
	}
	if want != "" && want != c.isolation {
		if why == nil {
			why = fmt.Errorf("not root")
		}
		return c, fail.Lackf("no namespaces (%s) here: %w; `nicemu doctor` says what would change that", want, why)
	}
	if why != nil && c.isolation == IsolateNone {
		c.notes = append(c.notes, fmt.Sprintf("hosts: no namespaces here (%v): all hosts are this machine, with addresses 127.0.x.y, and their names are not known", why))
	}
	c.tap, _ = doctor.TAP(string(c.isolation))
	return c, nil
}

// wires returns the wires to try, best first.
func (c choice) wires(l *labfile.Lab, perHost bool) ([]string, error) {
	switch l.Wire {
	case "tap":
		if !c.hasTAP() {
			return nil, fail.Lackf("%v (`wire: auto` takes the next best wire)", c.tap)
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
	if c.hasTAP() {
		list = append(list, "tap")
	}
	list = append(list, "udp")
	if !perHost {
		list = append(list, "mem")
	}
	return list, nil
}

// hasTAP reports whether TAPs can be made in the hosts' namespaces.
func (c choice) hasTAP() bool { return c.tap.State == doctor.OK }

// firstNote says in one line why auto did not take the first wire.
func (c choice) firstNote(took string) string {
	if took == "tap" || c.hasTAP() {
		return ""
	}
	return fmt.Sprintf("wire: %s (TAP device: %s)", took, c.tap.Detail)
}

// checkMachine stops early where no program could be served.
func checkMachine() error {
	if dma, _ := doctor.DMA(); dma.State == doctor.No {
		return fail.Lackf("%v", dma)
	}
	return nil
}
