// Package identity is who a machine and its users are: accounts, host name,
// machine id and clock.
//
// It edits files of the machine's own /etc and must not know runs or the wire.
package identity

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// ErrNoUser is returned for a name that /etc/passwd does not know.
var ErrNoUser = errors.New("no such user")

// maxDatabase bounds /etc/passwd and /etc/group, which workloads may own.
const maxDatabase = 1 << 20

// Account is who a process runs as.
type Account struct {
	Name   string
	UID    int
	GID    int
	Home   string
	Groups []int // supplementary
}

// Lookup finds who user names: a name of /etc/passwd, or a numeric
// "uid[:gid]" that need not be there. The empty name is the agent's own
// account. dir is where passwd and group are, normally /etc.
func Lookup(dir, user string) (Account, error) {
	passwd, err := readDatabase(filepath.Join(dir, "passwd"))
	if err != nil {
		return Account{}, err
	}
	group, err := readDatabase(filepath.Join(dir, "group"))
	if err != nil {
		return Account{}, err
	}
	if user == "" {
		user = strconv.Itoa(os.Geteuid()) + ":" + strconv.Itoa(os.Getegid())
	}
	return find(passwd, group, user)
}

func find(passwd, group []byte, user string) (Account, error) {
	if user == "" || len(user) > 256 {
		return Account{}, fmt.Errorf("cannot look up user %q: %w", user, ErrNoUser)
	}
	if c := user[0]; c < '0' || c > '9' {
		for a := range accounts(passwd) {
			if a.Name == user {
				a.Groups = groupsOf(group, a.Name)
				return a, nil
			}
		}
		return Account{}, fmt.Errorf("cannot look up user %q: %w", user, ErrNoUser)
	}
	uidText, gidText, withGroup := strings.Cut(user, ":")
	uid, err := parseID(uidText)
	if err != nil {
		return Account{}, fmt.Errorf("cannot look up user %q: %w", user, err)
	}
	account := Account{Name: uidText, UID: uid, GID: uid, Home: "/"}
	for a := range accounts(passwd) {
		if a.UID == uid {
			account = a
			account.Groups = groupsOf(group, a.Name)
			break
		}
	}
	if withGroup {
		if account.GID, err = parseID(gidText); err != nil {
			return Account{}, fmt.Errorf("cannot look up user %q: %w", user, err)
		}
	}
	return account, nil
}

// accounts yields the well-formed lines of a passwd file.
func accounts(passwd []byte) func(yield func(Account) bool) {
	return func(yield func(Account) bool) {
		for line := range bytes.Lines(passwd) {
			f := strings.Split(strings.TrimRight(string(line), "\n"), ":")
			if len(f) < 7 || f[0] == "" {
				continue
			}
			uid, err1 := parseID(f[2])
			gid, err2 := parseID(f[3])
			if err1 != nil || err2 != nil {
				continue
			}
			home := f[5]
			if home == "" {
				home = "/"
			}
			if !yield(Account{Name: f[0], UID: uid, GID: gid, Home: home}) {
				return
			}
		}
	}
}

// groupsOf lists the groups that name a user as member, at most 64.
func groupsOf(group []byte, name string) []int {
	var gids []int
	for line := range bytes.Lines(group) {
		f := strings.Split(strings.TrimRight(string(line), "\n"), ":")
		if len(f) < 4 || len(gids) == 64 {
			continue
		}
		for member := range strings.SplitSeq(f[3], ",") {
			if member != name {
				continue
			}
			if gid, err := parseID(f[2]); err == nil {
				gids = append(gids, gid)
			}
			break
		}
	}
	return gids
}

func parseID(s string) (int, error) {
	id, err := strconv.ParseUint(s, 10, 32)
	if err != nil || id == math.MaxUint32 {
		return 0, fmt.Errorf("%q is no user or group id", s)
	}
	return int(id), nil
}

// readDatabase reads a file of /etc; one that is missing is empty.
func readDatabase(path string) ([]byte, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read accounts: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxDatabase+1))
	if err != nil {
		return nil, fmt.Errorf("cannot read accounts: %w", err)
	}
	if len(data) > maxDatabase {
		return nil, fmt.Errorf("cannot read accounts: %q is larger than %d bytes", path, maxDatabase)
	}
	return data, nil
}
