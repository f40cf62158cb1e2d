package rest

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// A stranger has every address of a network of IPv6, and uses up no part of another's.
func TestPaceOfNetworks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p pace
		const most = 30
		passed := 0
		for i := range 30_000 {
			if p.take("logins", fmt.Sprintf("2001:db8:0:1::%x", i), most) == nil {
				passed++
			}
		}
		if passed != most {
			t.Errorf("one network passed %d times, want %d", passed, most)
		}
		for _, calm := range []string{"192.0.2.7", "2001:db8:0:2::1", "2001:db8:1::1"} {
			if err := p.take("logins", calm, most); err != nil {
				t.Errorf("%s is refused: %v", calm, err)
			}
		}
		if err := p.take("exchanges", "2001:db8:0:1::1", most); err != nil {
			t.Errorf("another kind is refused: %v", err)
		}
		time.Sleep(paceOver)
		if err := p.take("logins", "2001:db8:0:1::1", most); err != nil {
			t.Errorf("a minute later: %v", err)
		}
	})
}

// A site has many networks, and an attacker many addresses of IPv4.
func TestPaceOfSites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p pace
		const most = 30
		passed := 0
		for i := range 1000 {
			for range most {
				if p.take("logins", fmt.Sprintf("2001:db8:0:%x::1", i), most) == nil {
					passed++
				}
			}
		}
		if passed != most*siteNetworks {
			t.Errorf("one site passed %d times, want %d", passed, most*siteNetworks)
		}
		for i := range 20_000 {
			_ = p.take("logins", fmt.Sprintf("10.0.%d.%d", i/256, i%256), most) // as many parties as there are
		}
		if err := p.take("logins", "192.0.2.7", most); err != nil {
			t.Errorf("a calm network among very many: %v", err)
		}
	})
}
