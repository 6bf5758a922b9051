package cmd

import (
	"debug/elf"
	"errors"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// whyUnreached looks at a program for reasons why LD_LIBRARY_PATH cannot lead it to our library; "" when there is none.
func whyUnreached(path string) string {
	st, err := os.Stat(path)
	if err != nil {
		return ""
	}
	if st.Mode()&(os.ModeSetuid|os.ModeSetgid) != 0 {
		return "it is setuid or setgid, and the loader ignores LD_LIBRARY_PATH for such programs"
	}
	if n, err := unix.Getxattr(path, "security.capability", nil); err == nil && n > 0 {
		return "it has file capabilities, and the loader ignores LD_LIBRARY_PATH for such programs"
	}
	f, err := elf.Open(path)
	if err != nil {
		var fe *elf.FormatError
		if errors.As(err, &fe) {
			return "" // a script: its interpreter is what counts
		}
		return ""
	}
	defer func() { _ = f.Close() }() // read only
	dynamic := false
	for _, p := range f.Progs {
		dynamic = dynamic || p.Type == elf.PT_INTERP
	}
	if !dynamic {
		return "it is statically linked"
	}
	if r, err := f.DynString(elf.DT_RPATH); err == nil && len(r) > 0 {
		if run, err := f.DynString(elf.DT_RUNPATH); err != nil || len(run) == 0 {
			return "its own RPATH (" + strings.Join(r, ":") + ") comes before LD_LIBRARY_PATH"
		}
	}
	return ""
}
