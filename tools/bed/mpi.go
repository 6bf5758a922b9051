package bed

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// MPIs are the implementations of MPI that Debian has, by the suffix of their programs: mpirun.openmpi.
var MPIs = []string{"openmpi", "mpich"}

// CompileMPI compiles a program with the compiler of an MPI.
func CompileMPI(mpi, source, program string) error {
	out, err := exec.Command("mpicc."+mpi, "-O2", "-Wall", "-Wextra", "-Werror", "-o", program, source).CombinedOutput()
	if err != nil {
		return fmt.Errorf("mpicc.%s: %w\n%s", mpi, err, out)
	}
	return nil
}

// agent is what mpirun starts in place of ssh: options, the host, and a line for its shell.
const agent = `#!/bin/sh
while :; do case $1 in -*) shift ;; *) break ;; esac; done
host=$1
shift
exec "$NICEMU" lab exec "$host" -- sh -c "$*"
`

// MPI is a way to run a program as ranks on hosts a and b.
type MPI struct {
	Name  string // one of MPIs
	Ranks int    // on both hosts together
	Env   []string
	// Over has Open MPI's options for what connects ranks. Without, that is UCX alone, also between those of one host: no transport
	// of MPI's own, no shared memory; Env says which of UCX's transports.
	Over []string
}

var overUCX = []string{"--mca", "pml", "ucx", "--mca", "btl", "^openib,vader,tcp", "--mca", "opal_common_ucx_tls", "any", "--mca", "opal_common_ucx_devices", "any"}

// MPIRun is the command that runs a program so, to be run on host a.
func (b *Bed) MPIRun(m MPI, program ...string) ([]string, error) {
	path := filepath.Join(b.dir, "agent")
	if err := os.WriteFile(path, []byte(agent), 0o755); err != nil {
		return nil, err
	}
	var names []string
	for _, e := range m.Env {
		name, _, _ := strings.Cut(e, "=")
		names = append(names, name)
	}
	n := strconv.Itoa(m.Ranks)
	hosts := fmt.Sprintf("a:%d,b:%d", (m.Ranks+1)/2, m.Ranks/2)
	cmd := append([]string{"env", "NICEMU=" + b.bin}, m.Env...)
	if m.Name == "mpich" {
		// MPIR_CVAR_NOLOCAL: its own shared memory off. Only the variables that are named may go along: by itself mpirun hands
		// the environment of host a to the ranks of b, and with it MR_NIC, the name of a's NIC.
		cmd = append(cmd, "MPIR_CVAR_NOLOCAL=1", "mpirun.mpich", "-launcher", "ssh", "-launcher-exec", path, "-hosts", hosts, "-n", n,
			"-bind-to", "none", "-genvlist", strings.Join(append(names, "MPIR_CVAR_NOLOCAL"), ","))
		return append(cmd, program...), nil
	}
	// Root of a namespace is not the root that Open MPI warns of. Without the two
	// opal_… it takes only hardware that it knows by name.
	cmd = append(cmd, "OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1", "mpirun.openmpi", "-H", hosts, "-n", n, "--bind-to", "none",
		"--mca", "plm_rsh_agent", path)
	if m.Over == nil {
		m.Over = overUCX
	}
	cmd = append(cmd, m.Over...)
	for _, name := range names {
		cmd = append(cmd, "-x", name)
	}
	return append(cmd, program...), nil
}
