package main

import (
	"net/netip"
	"slices"
	"testing"
)

func TestPushAllow(t *testing.T) {
	c := pushConfig{Allow: []string{"10.1.2.3/16", "1.2.3.4", "fd00::1", "0.0.0.0/0"}}
	if err := c.complete(); err != nil {
		t.Fatal(err)
	}
	want := []netip.Prefix{
		netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("1.2.3.4/32"), // one address, not the network it begins
		netip.MustParsePrefix("fd00::1/128"), netip.MustParsePrefix("0.0.0.0/0"),
	}
	if !slices.Equal(c.allow, want) {
		t.Errorf("permitted are %v, want %v", c.allow, want)
	}
	for _, bad := range []string{"", "1.2.3", "0x7f000001", "10.0.0.0/33", "10.0.0.0/", "fe80::1%eth0", "example.org"} {
		if err := (&pushConfig{Allow: []string{bad}}).complete(); err == nil {
			t.Errorf("--push-allow %q is taken", bad)
		}
	}
}
