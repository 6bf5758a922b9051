// Package clients runs unmodified programs of Debian's packages over our NIC and keeps the table of what they do:
// docs/compatibility.md. It needs `make` and the packages of `ci/deps.sh test`.
//
//	make test-clients                                    one row of each program
//	MR_CLIENTS=all go test -tags clients ./tests/clients -timeout 60m   all rows; a, b: half of them
//	go test -tags clients ./tests/clients -run TestClients/UCX -args -update
//
// A row with a worse result than the table's fails; a better one is shown, and -update writes it into the table.
package clients
