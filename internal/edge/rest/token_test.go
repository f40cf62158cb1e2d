package rest

import (
	"net/url"
	"testing"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/fleet"
)

func TestTokenRoundTrip(t *testing.T) {
	for _, ascending := range []bool{true, false} {
		c := fleet.Cursor{StartedAt: time.Date(2026, 2, 3, 4, 5, 6, 7e6, time.UTC), ID: cay.NewSandboxID()}
		got, err := decodeToken(encodeToken(c, ascending), ascending)
		if err != nil || *got != c {
			t.Errorf("%+v became %+v, %v", c, got, err)
		}
		if _, err := decodeToken(encodeToken(c, ascending), !ascending); cay.KindOf(err) != cay.Invalid {
			t.Errorf("a token of the other order: %v", err)
		}
	}
}

// FuzzToken: whatever is taken for a token names one place, in one order.
func FuzzToken(f *testing.F) {
	f.Add(encodeToken(fleet.Cursor{StartedAt: time.UnixMilli(1), ID: "ia"}, false), false)
	f.Add(encodeToken(fleet.Cursor{StartedAt: time.UnixMilli(1), ID: "ia"}, true), true)
	f.Add("MjAyMy0xMS0xNFQyMjoxMzoyMC4wMDBaX19fXw==", true)
	f.Fuzz(func(t *testing.T, token string, ascending bool) {
		c, err := decodeToken(token, ascending)
		if err != nil {
			if cay.KindOf(err) != cay.Invalid {
				t.Fatalf("%v", err)
			}
			return
		}
		again, err := decodeToken(encodeToken(*c, ascending), ascending)
		if err != nil || *again != *c {
			t.Fatalf("%+v became %+v, %v", c, again, err)
		}
	})
}

// FuzzMetadata: a filter written as SDKs write it is read back as it was, and
// no other text does harm.
func FuzzMetadata(f *testing.F) {
	f.Add("user name", "a&b=c+d%20ü", "a=b&c")
	f.Add("", "", "%zz")
	f.Add("%", "+", ";")
	f.Fuzz(func(t *testing.T, key, value, raw string) {
		if _, err := parseMetadata(raw); err != nil && cay.KindOf(err) != cay.Invalid {
			t.Fatalf("%v", err)
		}
		inner := url.Values{url.PathEscape(key): {url.PathEscape(value)}}
		got, err := parseMetadata(inner.Encode())
		if err != nil || len(got) != 1 || got[key] != value {
			t.Fatalf("%q=%q became %q, %v", key, value, got, err)
		}
	})
}

func FuzzReferences(f *testing.F) {
	f.Add("localhost:${PORT}")
	f.Add("[::1]:80")
	f.Add("10.0.0.0/8")
	f.Fuzz(func(t *testing.T, s string) {
		cay.IsDomain(s)
		if validMask(s) {
			for _, r := range s {
				if r > 127 || r == ' ' || r == '/' {
					t.Fatalf("%q is taken for a host", s)
				}
			}
		}
		if id := sandboxID(s); len(id) > len(s) {
			t.Fatalf("%q became %q", s, id)
		}
	})
}
