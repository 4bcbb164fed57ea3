// The type of every index that is multiplied by a leading dimension.

#pragma once

using Index = long long;
