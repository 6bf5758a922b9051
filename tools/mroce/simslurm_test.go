//go:build slurm

package main

import (
	"slices"
	"testing"
)

// TestSlurmRuns: simulations that went through Slurm have the results of those that did not. ci/slurm.sh runs the cluster.
func TestSlurmRuns(t *testing.T) {
	local, cluster := sweepHashes(t), sweepHashes(t, "--engine", "slurm")
	slices.Sort(local)
	slices.Sort(cluster)
	if len(local) != 2 || !slices.Equal(local, cluster) {
		t.Errorf("here %v, by Slurm %v", local, cluster)
	}
}
