package space

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// TryCommand is the hidden command that Try runs inside: it does nothing, well.
const TryCommand = "__true"

// Try makes namespaces and leaves them again: nil, or why this machine refuses. flags are CLONE_NEW… bits.
func Try(rootless bool, flags uintptr) error {
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	c := exec.Command(exe, TryCommand)
	c.WaitDelay = 5 * time.Second
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags}
	if rootless {
		IntoUserNS(c.SysProcAttr)
	}
	if err := c.Run(); err != nil {
		var pe *os.PathError
		if errors.As(err, &pe) {
			err = pe.Err // that it was fork and exec of what is no news to a user
		}
		return fmt.Errorf("%s refused: %w", flagNames(rootless, flags), err)
	}
	return nil
}

func flagNames(rootless bool, flags uintptr) string {
	s := ""
	add := func(on bool, name string) {
		if on && s != "" {
			s += ", "
		}
		if on {
			s += name
		}
	}
	add(rootless, "user")
	add(flags&unix.CLONE_NEWNET != 0, "network")
	add(flags&unix.CLONE_NEWNS != 0, "mount")
	add(flags&unix.CLONE_NEWUTS != 0, "UTS")
	return s + " namespace"
}
