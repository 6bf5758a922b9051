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

// MPIRun is the command that runs a program with so many ranks on hosts a and b together, to be run on host a. UCX is the only way
// between ranks, those of one host included, and env says which of its transports: no transport of MPI's own, no shared memory.
func (b *Bed) MPIRun(mpi string, ranks int, env []string, program ...string) ([]string, error) {
	path := filepath.Join(b.dir, "agent")
	if err := os.WriteFile(path, []byte(agent), 0o755); err != nil {
		return nil, err
	}
	var names []string
	for _, e := range env {
		name, _, _ := strings.Cut(e, "=")
		names = append(names, name)
	}
	n := strconv.Itoa(ranks)
	hosts := fmt.Sprintf("a:%d,b:%d", (ranks+1)/2, ranks/2)
	cmd := append([]string{"env", "NICEMU=" + b.bin}, env...)
	if mpi == "mpich" {
		// MPIR_CVAR_NOLOCAL: its own shared memory off. Only the variables that are named may go along: by itself mpirun hands
		// the environment of host a to the ranks of b, and with it MR_NIC, the name of a's NIC.
		cmd = append(cmd, "MPIR_CVAR_NOLOCAL=1", "mpirun.mpich", "-launcher", "ssh", "-launcher-exec", path, "-hosts", hosts, "-n", n,
			"-bind-to", "none", "-genvlist", strings.Join(append(names, "MPIR_CVAR_NOLOCAL"), ","))
		return append(cmd, program...), nil
	}
	// Root of a namespace is not the root that Open MPI warns of. Without the two opal_… it takes only hardware that it knows by name.
	cmd = append(cmd, "OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1", "mpirun.openmpi", "-H", hosts, "-n", n, "--bind-to", "none",
		"--mca", "plm_rsh_agent", path, "--mca", "pml", "ucx", "--mca", "btl", "^openib,vader,tcp",
		"--mca", "opal_common_ucx_tls", "any", "--mca", "opal_common_ucx_devices", "any")
	for _, name := range names {
		cmd = append(cmd, "-x", name)
	}
	return append(cmd, program...), nil
}
