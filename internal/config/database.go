package config

import (
	"net/url"
	"strconv"
	"strings"

	"github.com/cay-run/cay"
)

// Database says where the records are.
type Database struct {
	// DatabaseURL is the address of a PostgreSQL database, with the password;
	// empty keeps the records in the data directory.
	DatabaseURL string `yaml:"databaseURL"`
	// DatabaseStandby refuses a PostgreSQL without a synchronous standby.
	DatabaseStandby bool `yaml:"databaseStandby"`
}

var databaseVariables = []Variable{
	{"CAY_DATABASE_URL", "databaseURL", "PostgreSQL that keeps the records: postgres://user:password@host:5432/name?sslmode=verify-full [SQLite in the data directory]",
		func(c *Config, v string) error { c.DatabaseURL = v; return nil }},
	{"CAY_DATABASE_STANDBY", "databaseStandby", "true refuses to start on a PostgreSQL without a synchronous standby [false]",
		func(c *Config, v string) (err error) { c.DatabaseStandby, err = strconv.ParseBool(v); return err }},
}

func (c Config) databaseProblems() []error {
	at := c.DatabaseURL
	switch {
	case at != "" && !strings.HasPrefix(at, "postgres://") && !strings.HasPrefix(at, "postgresql://"):
		// The value is not repeated: it may hold a password in any form.
		return []error{cay.Errorf(cay.Invalid, "database URL: it does not begin with postgres://").
			WithHint("it looks like postgres://user:password@host:5432/name?sslmode=verify-full")}
	case at == "" && c.DatabaseStandby:
		return []error{cay.Errorf(cay.Invalid, "database standby: there is no database URL, so no PostgreSQL that could have one")}
	}
	return nil
}

// maskDatabase is an address for people: without what may hold a password, which
// a parameter may do as well as the user's part.
func maskDatabase(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return "***"
	}
	if u.User != nil {
		u.User = url.User(u.User.Username())
	}
	if u.RawQuery != "" {
		u.RawQuery = "***"
	}
	return u.String()
}
