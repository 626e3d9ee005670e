"""The tests of kernels, under other hosts: `make test-hosts`."""
