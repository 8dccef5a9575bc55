-- Stands before the budget's functions, first: how a level's card and figures are packed (packed.py has the same). All
-- are doubles, so that one call reads and one writes them. Where functions are loaded, no library of
-- Lua's is there: hence constants are written out.
-- A card: state (1 active, 2 suspended, 3 deleted, 4 revoked), zone (a number for its name; of a key: when it expires,
-- ms, or 0), shadow (a bit for each rule), ten limits (-1: none); after them a tenant's models, lanes and tenants above
-- as JSON, or a key's tenant.
local CARD, LIMITS, CARD_BYTES, LIMITS_FROM = '<ddd', '<dddddddddd', 104, 25
local ACTIVE, DELETED, STATES = 1, 3, {'active', 'suspended', 'deleted', 'revoked'}
local NONE = '\0\0\0\0\0\0\240\191' -- -1 as a double
local ZEROS = '\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0' -- three doubles
local NO_CARD = ZEROS .. NONE .. NONE .. NONE .. NONE .. NONE .. NONE .. NONE .. NONE .. NONE .. NONE

-- Figures, by their place. A slice and the minute have three: requests, input, output.
local HELD = 0 -- before what flights in the air hold: requests, input, output
local AT, SLICE = 4, 4 -- the number of the newest slice, and before its three
local MINUTE = 7 -- before the sums of all slices that count
local OLDEST, FIRST, LAST = 11, 12, 13 -- slices: the oldest that counts; from which to which they stand in a hash
local DAY_SUM, MONTH_SUM, DAY = 14, 15, 16 -- tokens charged; which day: 20261121
local DAY_BEGINS, DAY_ENDS, MONTH_ENDS, ZONE = 17, 18, 19, 20
local PAUSED = 21 -- 1 where flights may wait here
local ZERO = 22 -- always 0; not stored
local FIGURES, FIGURES_BYTES = '<ddddddddddddddddddddd', 168
local NO_FIGURES = ZEROS .. ZEROS .. ZEROS .. ZEROS .. ZEROS .. ZEROS .. ZEROS
local SLICE_FORMAT, SLICE_BYTES = '<dddd', 32 -- {number, requests, input, output}: older slices, after the figures
